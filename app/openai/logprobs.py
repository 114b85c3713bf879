"""Log probabilities in the three shapes that clients know: chat's, text completions', and vLLM's for prompts."""

from __future__ import annotations

from collections.abc import Iterable

from app.openai.answers import ChatLogprob, ChatLogprobs, PromptLogprob, PromptLogprobs, TextLogprobs, TopLogprob
from engine.text.tokenizer import Tokenizer
from engine.types import TokenLogprob

_LOWEST = -9999.0
"""JSON has no infinity; this is what OpenAI sends for a token that cannot come."""


def spelled(tokenizer: Tokenizer, token_id: int) -> tuple[str, list[int]]:
    """A token's text and bytes. Part of a character is written `bytes:\\xf0\\x9f`, as OpenAI does."""
    piece = tokenizer.token_bytes(token_id)
    if not piece:
        return tokenizer.token_text(token_id), []
    try:
        text = piece.decode()
    except UnicodeDecodeError:
        text = "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
    return text, list(piece)


def chat_logprobs(tokenizer: Tokenizer, rows: Iterable[TokenLogprob]) -> ChatLogprobs:
    """choices[].logprobs of chat."""
    content = []
    for row in rows:
        text, piece = spelled(tokenizer, row.token_id)
        top = [TopLogprob(*_entry(tokenizer, token_id, logprob)) for token_id, logprob in row.top]
        content.append(ChatLogprob(text, _finite(row.logprob), piece, top))
    return ChatLogprobs(content)


def _entry(tokenizer: Tokenizer, token_id: int, logprob: float) -> tuple[str, float, list[int]]:
    text, piece = spelled(tokenizer, token_id)
    return text, _finite(logprob), piece


class TextLogprobsBuilder:
    """choices[].logprobs of text completions, whose offsets run through the whole answer, chunk by chunk."""

    def __init__(self, tokenizer: Tokenizer, offset: int = 0) -> None:
        self._tokenizer = tokenizer
        self._offset = offset

    def add(self, token_ids: Iterable[int], rows: Iterable[TokenLogprob | None]) -> TextLogprobs:
        """One entry for each token; a row is None for a prompt's first token, before which there is nothing."""
        part = TextLogprobs()
        for token_id, row in zip(token_ids, rows, strict=False):
            text, piece = spelled(self._tokenizer, token_id)
            part.tokens.append(text)
            part.text_offset.append(self._offset)
            self._offset += len(bytes(piece).decode(errors="ignore"))
            part.token_logprobs.append(None if row is None else _finite(row.logprob))
            part.top_logprobs.append(None if row is None else self._top(text, row))
        return part

    def _top(self, text: str, row: TokenLogprob) -> dict[str, float]:
        top = {spelled(self._tokenizer, token_id)[0]: _finite(logprob) for token_id, logprob in row.top}
        top.setdefault(text, _finite(row.logprob))  # the chosen token is always among them, as with OpenAI
        return top


def prompt_logprobs(tokenizer: Tokenizer, rows: Iterable[TokenLogprob | None]) -> PromptLogprobs:
    """vLLM's `prompt_logprobs`."""
    return [None if row is None else _prompt_row(tokenizer, row) for row in rows]


def _prompt_row(tokenizer: Tokenizer, row: TokenLogprob) -> dict[str, PromptLogprob]:
    entries = {
        str(token_id): PromptLogprob(_finite(logprob), rank, spelled(tokenizer, token_id)[0])
        for rank, (token_id, logprob) in enumerate(row.top, 1)
    }
    own = PromptLogprob(_finite(row.logprob), row.rank, spelled(tokenizer, row.token_id)[0])
    return {str(row.token_id): own} | entries


def _finite(logprob: float) -> float:
    return max(logprob, _LOWEST)
