"""What the OpenAI-shaped routes do: check, tokenise, submit; and tell about the model."""

from __future__ import annotations

from app.errors import UnknownModel
from app.host import ModelHost
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
    """Stateless but for the model host, whose engine it uses."""

    def __init__(self, host: ModelHost) -> None:
        self._host = host
        self._capabilities = ["completion"]
        host.on_ready.append(self._note_capabilities)

    @property
    def must_load(self) -> bool:
        """Whether the next request waits for the model, which was unloaded for silence."""
        return self._host.is_asleep

    async def chat(self, request: ChatRequest) -> Job:
        """Queue a chat request. Every refusal is raised here, before anything is sent."""
        self.require_model(request.model)
        request = to_chat(request)
        refuse_unavailable(request)
        params = chat_params(request)
        engine = await self._host.acquire()
        prompt = await prompts.chat_prompt(engine, request)
        if engine.template is not None:
            params.stop += engine.template.stop
        return self._submit(engine, [prompt], params, request, "chatcmpl")

    async def completion(self, request: CompletionRequest) -> Job:
        """Queue a text completion, one engine request for each of its prompts."""
        self.require_model(request.model)
        refuse_unavailable(request)
        params = completion_params(request)
        engine = await self._host.acquire()
        token_ids = await prompts.completion_prompts(engine, request)
        if request.suffix and engine.tokenizer.fim is not None:
            params.stop_token_ids += tuple(engine.tokenizer.fim.end_ids)
        return self._submit(engine, token_ids, params, request, "cmpl")

    def _submit(
        self, engine: AsyncEngine, token_ids: list[list[int]], params: SamplingParams, request: Sampling, prefix: str
    ) -> Job:
        return submit(
            engine,
            token_ids,
            params,
            prefix=prefix,
            model=self._host.name,
            cache_salt=request.cache_salt or "",
            priority=request.priority or 0,
            cap=request.num_ctx,
        )

    async def tokenize(self, request: TokenizeRequest) -> Tokens:
        """Token ids of a text, or of messages through the chat template."""
        self.require_model(request.model)
        engine = await self._host.acquire()
        token_ids = await prompts.text_or_chat(engine, request)
        answer = Tokens(len(token_ids), engine.info.max_model_len, token_ids)
        if request.return_token_strs:
            answer.token_strs = [engine.tokenizer.token_text(token_id) for token_id in token_ids]
        return answer

    async def detokenize(self, request: DetokenizeRequest) -> Text:
        """The text of token ids, special tokens written out."""
        self.require_model(request.model)
        engine = await self._host.acquire()
        for token_id in request.tokens:
            if token_id >= engine.info.n_vocab:
                raise InvalidRequest("tokens", f"`tokens`: {token_id} is not in the vocabulary of {engine.info.n_vocab}.")
        return Text(engine.tokenizer.decode(request.tokens, skip_special=False))

    def models(self) -> ModelList:
        """The list; answers at once, also while the model loads."""
        return ModelList([self._entry()])

    def model(self, model_id: str) -> ModelEntry:
        self.require_model(model_id)
        return self._entry()

    def _entry(self) -> ModelEntry:
        host, info = self._host, self._host.info
        entry = ModelEntry(
            id=host.name,
            created=host.created,
            state=host.state,
            loaded=host.state == "ready",
            progress=round(host.progress, 3),
            capabilities=self._capabilities,
        )
        if info is not None:
            entry.max_model_len = entry.context_length = info.max_model_len
            entry.meta = ModelMeta(n_ctx=info.max_model_len, n_params=info.n_params, size=info.weights_bytes)
        return entry

    def _note_capabilities(self, engine: AsyncEngine) -> None:
        """What the model can do; it stays known after an unload."""
        abilities = {"completion": True, "chat": engine.template is not None, "insert": engine.tokenizer.fim is not None}
        self._capabilities = [name for name, has in abilities.items() if has]

    def require_model(self, name: str | None) -> None:
        if name and name.lower() != self._host.name.lower():
            raise UnknownModel(f"The model `{name}` does not exist here.", f"This server has `{self._host.name}`.")
