"""OpenVINO GenAI's continuous batching behind /v1/chat/completions, for it brings no server: as little as a comparison needs.

Runs by itself with an interpreter that has openvino-genai: PYTHON openvino_server.py MODEL PORT THREADS. Only streamed greedy
answers; the pipeline's own scheduler, tokenizer and chat template. A step keeps Python's lock, so that a second thread would wait
for it anyway: sockets are served between steps.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass, field
from typing import Any

CACHE_GB = 4
BATCHED_TOKENS = 1024
TURNS = 4
"""Rounds of the event loop between two steps: enough for a request to be read, or a token to be sent."""


@dataclass
class Answer:
    """One request. `tokens` gets its token ids, then None."""

    input_ids: Any
    config: Any
    tokens: asyncio.Queue[int | None] = field(default_factory=asyncio.Queue)
    handle: Any = None


class Pipeline:
    """The pipeline and the answers that it works on."""

    def __init__(self, model: str, threads: int) -> None:
        import openvino_genai

        self.genai = openvino_genai
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GB
        scheduler.max_num_batched_tokens = BATCHED_TOKENS
        scheduler.enable_prefix_caching = True
        properties = {"INFERENCE_NUM_THREADS": threads}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)
        self.tokenizer = self._pipeline.get_tokenizer()
        self._running: list[Answer] = []
        self._n_requests = 0
        self._awake = asyncio.Event()

    def submit(self, body: dict[str, Any]) -> Answer:
        prompt = self.tokenizer.apply_chat_template(body["messages"], add_generation_prompt=True)
        config = self.genai.GenerationConfig()
        config.max_new_tokens = body["max_tokens"]
        config.ignore_eos = bool(body.get("ignore_eos"))
        config.do_sample = False
        encoded = self.tokenizer.encode(prompt, add_special_tokens=False).input_ids
        answer = Answer(encoded, config)
        answer.handle = self._pipeline.add_request(self._n_requests, encoded, config)
        self._n_requests += 1
        self._running.append(answer)
        self._awake.set()
        return answer

    async def run(self) -> None:
        while True:
            await self._awake.wait()
            self._pipeline.step()
            for answer in list(self._running):
                while answer.handle.can_read():
                    for output in answer.handle.read().values():
                        for token_id in output.generated_ids:
                            answer.tokens.put_nowait(token_id)
                if answer.handle.get_status().name != "RUNNING":
                    answer.tokens.put_nowait(None)
                    self._running.remove(answer)
            if not self._running:
                self._awake.clear()
            for _ in range(TURNS):
                await asyncio.sleep(0)


async def answer(pipeline: Pipeline, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    if not head.startswith("POST"):
        content = b'{"object": "list", "data": [{"id": "openvino"}]}'
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(content), content))
    else:
        length = next(int(line.split(":")[1]) for line in head.splitlines() if line.lower().startswith("content-length:"))
        request = pipeline.submit(json.loads(await reader.readexactly(length)))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        n_output = 0
        while (token_id := await request.tokens.get()) is not None:
            n_output += 1
            text = pipeline.tokenizer.decode([token_id], skip_special_tokens=False)
            _send(writer, {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})
            await writer.drain()
        usage = {"prompt_tokens": request.input_ids.shape[1], "completion_tokens": n_output}
        _send(writer, {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}], "usage": usage})
        writer.write(b"data: [DONE]\n\n")
    await writer.drain()
    writer.close()


def _send(writer: asyncio.StreamWriter, chunk: dict[str, Any]) -> None:
    writer.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")


async def main(model: str, port: int, threads: int) -> None:
    pipeline = Pipeline(model, threads)
    async with await asyncio.start_server(lambda *streams: answer(pipeline, *streams), "127.0.0.1", port) as server:
        await asyncio.gather(server.serve_forever(), pipeline.run())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
