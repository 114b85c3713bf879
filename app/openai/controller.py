"""The OpenAI-shaped routes, each with and without /v1."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial

from litestar import Controller, MediaType, Request, Response, get, post
from litestar.di import NamedDependency
from litestar.openapi import ResponseSpec
from litestar.params import FromPath, JSONBody

from app.body import JsonBody
from app.connection import while_connected
from app.errors import ErrorBody
from app.openai import chat, completion
from app.openai.answers import ChatCompletion, ModelEntry, ModelList, Text, TextCompletion, Tokens
from app.openai.job import Job
from app.openai.schemas import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from app.openai.service import OpenAIService
from app.openai.waking import waking
from app.sse import EventStream

_REFUSALS = {
    400: ResponseSpec(ErrorBody, generate_examples=False, description="A field is wrong; `param` names it."),
    404: ResponseSpec(ErrorBody, generate_examples=False, description="There is no such model here."),
    503: ResponseSpec(ErrorBody, generate_examples=False, description="Loading, or too many wait; see retry-after."),
}


class OpenAIController(Controller):
    """Chat, text completions, models, tokens."""

    tags = ("OpenAI",)
    dto = JsonBody
    return_dto = None

    @post(
        ["/v1/chat/completions", "/chat/completions"],
        status_code=200,
        responses=_REFUSALS,
        summary="Answer a chat",
        description="With `stream`, server-sent events whose data are chunks, ending with [DONE].",
    )
    async def chat(
        self, request: Request, data: JSONBody[ChatRequest], openai: NamedDependency[OpenAIService]
    ) -> Response[ChatCompletion]:
        include_usage = bool(data.stream_options and data.stream_options.include_usage)
        if data.stream and await openai.must_load(data.model):
            return waking(partial(openai.chat, data), partial(chat.chunks, include_usage=include_usage))
        job = await while_connected(request.receive, openai.chat(data))
        headers = {"x-request-id": job.id}
        if data.stream:
            return EventStream(chat.chunks(job, include_usage=include_usage), close=job.abort, headers=headers)
        (output,) = await while_connected(request.receive, job.collect())
        return Response(chat.whole(job, output), media_type=MediaType.JSON, headers=headers)

    @post(
        ["/v1/completions", "/completions"],
        status_code=200,
        responses=_REFUSALS,
        summary="Continue a text",
        description="With `stream`, server-sent events whose data are chunks, ending with [DONE].",
    )
    async def completion(
        self, request: Request, data: JSONBody[CompletionRequest], openai: NamedDependency[OpenAIService]
    ) -> Response[TextCompletion]:
        prompt_only = data.max_tokens == 0
        include_usage = bool(data.stream_options and data.stream_options.include_usage)

        def chunks(job: Job) -> AsyncGenerator[bytes, None]:
            echoes = completion.echoes(job, data.prompt) if data.echo else None
            return completion.chunks(job, echoes=echoes, prompt_only=prompt_only, include_usage=include_usage)

        if data.stream and await openai.must_load(data.model):
            return waking(partial(openai.completion, data), chunks)
        job = await while_connected(request.receive, openai.completion(data))
        headers = {"x-request-id": job.id}
        if data.stream:
            return EventStream(chunks(job), close=job.abort, headers=headers)
        outputs = await while_connected(request.receive, job.collect())
        body = completion.whole(
            job,
            outputs,
            echoes=completion.echoes(job, data.prompt) if data.echo else None,
            prompt_only=prompt_only,
            show_prompt_logprobs=data.prompt_logprobs is not None,
        )
        return Response(body, media_type=MediaType.JSON, headers=headers)

    @get(["/v1/models", "/models"], summary="The models that are served, or can be loaded")
    async def models(self, openai: NamedDependency[OpenAIService]) -> ModelList:
        return await openai.models()

    @get(["/v1/models/{model_id:path}", "/models/{model_id:path}"], responses={404: _REFUSALS[404]}, summary="One model")
    async def model(self, model_id: FromPath[str], openai: NamedDependency[OpenAIService]) -> ModelEntry:
        return await openai.model(model_id.lstrip("/"))

    @post(["/tokenize", "/v1/tokenize"], status_code=200, responses=_REFUSALS, summary="Token ids of a text or of messages")
    async def tokenize(self, request: Request, data: JSONBody[TokenizeRequest], openai: NamedDependency[OpenAIService]) -> Tokens:
        return await while_connected(request.receive, openai.tokenize(data))

    @post(["/detokenize", "/v1/detokenize"], status_code=200, responses=_REFUSALS, summary="The text of token ids")
    async def detokenize(
        self, request: Request, data: JSONBody[DetokenizeRequest], openai: NamedDependency[OpenAIService]
    ) -> Text:
        return await while_connected(request.receive, openai.detokenize(data))
