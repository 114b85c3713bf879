"""LLM: the offline API. Prompts in, whole answers out, everything batched in one process.

from engine.llm import LLM, SamplingParams
llm = LLM("SmolLM2-135M-Instruct.Q4_1.gguf")
print(llm.generate("The capital of France is", SamplingParams(max_tokens=8))[0].outputs[0].text)
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from engine.admission import check_length, check_params, check_prompt
from engine.config import EngineConfig
from engine.errors import EngineDead, TemplateError
from engine.loading import load_core
from engine.outputs import RequestOutput
from engine.types import Event, Finished, Request, SamplingParams

__all__ = ["LLM", "RequestOutput", "SamplingParams"]

Message = dict[str, Any]


class LLM:
    """A model stepped by the calling thread. `knobs` are EngineConfig's fields.

    Another model with another number of `threads` may be loaded only while this one does not compute: they share the threads.
    """

    def __init__(self, model: str | Path, *, progress: bool = True, **knobs: Any) -> None:
        """Load a GGUF file or a Hugging Face folder. Raises ModelLoadError, ConfigError."""
        self.config = EngineConfig.of(knobs)
        self._progress = progress
        with tqdm(unit="B", unit_scale=True, desc="Loading", disable=not progress, leave=False) as bar:

            def show(done: int, total: int) -> None:
                bar.total = total
                bar.update(done - bar.n)

            loaded = load_core(Path(model).expanduser(), self.config, show)
        self.tokenizer, self.template, self.info = loaded.tokenizer, loaded.template, loaded.info
        self.core = loaded.make_core(self._receive)
        self._outputs: dict[int, RequestOutput] = {}
        self._bar: tqdm | None = None

    def generate(
        self,
        prompts: str | list[int] | Sequence[str | list[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        cache_salt: str = "",
    ) -> list[RequestOutput]:
        """Continue each prompt (text, or token ids), in the order given.

        One SamplingParams serves all, or one for each. Raises InvalidRequest or PromptTooLong before anything runs.
        """
        if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
            prompts = [prompts]
        each = list(params) if isinstance(params, Sequence) else [params or SamplingParams()] * len(prompts)
        for prompt in prompts:
            if isinstance(prompt, str):
                check_length(prompt, self.tokenizer, self.info.max_model_len)
        tokens = [self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt) for prompt in prompts]
        requests = [Request(str(i), ids, p, cache_salt=cache_salt) for i, (ids, p) in enumerate(zip(tokens, each, strict=True))]
        for request in requests:
            check_params(request.params, self.info.n_vocab)
            check_prompt(request.prompt_token_ids, self.info.n_vocab, self.info.max_model_len)
        return self._run(requests)

    def chat(
        self,
        conversations: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        /,
        **template: Any,
    ) -> list[RequestOutput]:
        """Answer each conversation, rendered by the model's chat template, which `template` arguments reach.

        Raises TemplateError where the model has no template that can be read, or it refuses the messages.
        """
        if self.template is None:
            raise TemplateError("This model's chat template cannot be read.", "Use generate, which needs none.")
        if conversations and isinstance(conversations[0], dict):
            conversations = [conversations]
        each = params if isinstance(params, Sequence) else [params or SamplingParams()] * len(conversations)
        params = [replace(p, stop=(*p.stop, *self.template.stop)) for p in each]
        texts = [self.template.render(messages, **template) for messages in conversations]
        return self.generate([self.tokenizer.encode(text, add_special=False) for text in texts], params)

    def _run(self, requests: list[Request]) -> list[RequestOutput]:
        with tqdm(total=len(requests), unit="answer", desc="Generating", disable=not self._progress) as self._bar:
            uids = [self.core.add(request) for request in requests]
            for uid, request in zip(uids, requests, strict=True):
                self._outputs[uid] = RequestOutput.empty(request.prompt_token_ids, request.params.n)
            try:
                while any(self._outputs[uid].usage is None for uid in uids):
                    self.core.step()
                self.core.store_rest()
            except BaseException:
                for uid in uids:
                    self.core.abort(uid)
                with contextlib.suppress(EngineDead):  # said by what is raised here
                    self.core.step()
                raise
            finally:
                outputs = [self._outputs.pop(uid) for uid in uids]
        return outputs

    def _receive(self, events: list[Event]) -> None:
        for event in events:
            if (output := self._outputs.get(event.uid)) is not None:
                output.add(event)
                if isinstance(event, Finished) and self._bar is not None:
                    self._bar.update()
