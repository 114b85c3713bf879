"""What the OpenAI-shaped routes do: check, tokenise, submit; and tell about the models."""

from __future__ import annotations

from functools import partial

from app.models.host import ModelHost
from app.models.pool import ModelPool
from app.openai import prompts
from app.openai.answers import ModelEntry, ModelList, ModelMeta, Text, Tokens
from app.openai.checks import refuse_unavailable
from app.openai.conversion import to_chat
from app.openai.job import Job, submit
from app.openai.sampling import chat_params, completion_params
from app.openai.schemas import ChatRequest, CompletionRequest, DetokenizeRequest, Sampling, TokenizeRequest
from engine.async_engine import AsyncEngine
from engine.errors import InvalidRequest
from engine.types import SamplingParams


class OpenAIService:
    """Stateless but for the pool, whose engines it uses."""

    def __init__(self, pool: ModelPool) -> None:
        self._pool = pool
        pool.each_host(lambda host: host.on_ready.append(partial(_note_capabilities, host)))

    async def must_load(self, model: str | None) -> bool:
        """Whether the next request for this model waits for it: it is not in memory, or about to leave. Raises UnknownModel."""
        return (await self._pool.find(model)).would_wait

    async def chat(self, request: ChatRequest) -> Job:
        """Queue a chat request. Every refusal is raised here, before anything is sent."""
        host = await self._pool.find(request.model)
        request = to_chat(request)
        refuse_unavailable(request)
        params = chat_params(request)
        async with host.use() as engine:
            prompt = await prompts.chat_prompt(engine, request)
            if engine.template is not None:
                params.stop += engine.template.stop
            return self._submit(host, engine, [prompt], params, request, "chatcmpl")

    async def completion(self, request: CompletionRequest) -> Job:
        """Queue a text completion, one engine request for each of its prompts."""
        host = await self._pool.find(request.model)
        refuse_unavailable(request)
        params = completion_params(request)
        async with host.use() as engine:
            token_ids = await prompts.completion_prompts(engine, request)
            if request.suffix and engine.tokenizer.fim is not None:
                params.stop_token_ids += tuple(engine.tokenizer.fim.end_ids)
            return self._submit(host, engine, token_ids, params, request, "cmpl")

    def _submit(
        self,
        host: ModelHost,
        engine: AsyncEngine,
        token_ids: list[list[int]],
        params: SamplingParams,
        request: Sampling,
        prefix: str,
    ) -> Job:
        return submit(
            engine,
            token_ids,
            params,
            prefix=prefix,
            model=host.name,
            cache_salt=request.cache_salt or "",
            priority=request.priority or 0,
            cap=request.num_ctx,
        )

    async def tokenize(self, request: TokenizeRequest) -> Tokens:
        """Token ids of a text, or of messages through the chat template."""
        async with self._pool.use(request.model) as engine:
            token_ids = await prompts.text_or_chat(engine, request)
            answer = Tokens(len(token_ids), engine.info.max_model_len, token_ids)
            if request.return_token_strs:
                answer.token_strs = [engine.tokenizer.token_text(token_id) for token_id in token_ids]
            return answer

    async def detokenize(self, request: DetokenizeRequest) -> Text:
        """The text of token ids, special tokens written out."""
        async with self._pool.use(request.model) as engine:
            for token_id in request.tokens:
                if token_id >= engine.info.n_vocab:
                    raise InvalidRequest("tokens", f"`tokens`: {token_id} is not in the vocabulary of {engine.info.n_vocab}.")
            return Text(engine.tokenizer.decode(request.tokens, skip_special=False))

    async def models(self) -> ModelList:
        """The list: what is served, and what can be loaded. It does not wait for any model."""
        await self._pool.look()
        return ModelList([_entry(host) for host in self._pool.hosts])

    async def model(self, model_id: str) -> ModelEntry:
        """One of them. Raises UnknownModel."""
        return _entry(await self._pool.find(model_id))


def _entry(host: ModelHost) -> ModelEntry:
    info = host.info
    entry = ModelEntry(
        id=host.name,
        created=host.created,
        state=host.state,
        loaded=host.state == "ready",
        progress=round(host.progress, 3),
        capabilities=list(host.capabilities),
    )
    if info is not None:
        entry.max_model_len = entry.context_length = info.max_model_len
        entry.meta = ModelMeta(n_ctx=info.max_model_len, n_params=info.n_params, size=info.weights_bytes)
    return entry


def _note_capabilities(host: ModelHost, engine: AsyncEngine) -> None:
    """What the model can do; it stays known after an unload."""
    abilities = {"completion": True, "chat": engine.template is not None, "insert": engine.tokenizer.fim is not None}
    host.capabilities = tuple(name for name, has in abilities.items() if has)
