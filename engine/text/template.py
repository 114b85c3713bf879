"""ChatTemplate: a conversation as the text that the model was trained to continue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from engine.errors import TemplateError
from engine.text.abilities import Abilities, find_abilities
from engine.text.folder_vocab import read_json
from engine.text.limits import TemplateLimit, metered
from engine.text.messages import normalise
from engine.text.sandbox import environment

if TYPE_CHECKING:
    from engine.text.tokenizer import Tokenizer

DEFAULT_SOURCE = """\
{{- bos_token }}
{%- for message in messages %}
{%- if message.role == 'user' %}User: {% elif message.role == 'assistant' %}Assistant: {% endif %}
{{- message.content }}{{ '\\n\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}Assistant:{% endif %}"""
"""For models without a template (base models): a plain transcript that any language model continues.

    You are helpful.

    User: Hello

    Assistant:
"""

_DEFAULT_STOPS = ("\n\nUser:",)
_END = "\ue0f1\ue0f2"
"""Two private characters that mark where a message to be continued ends; no text has them side by side."""


class ChatTemplate:
    """A template that takes messages as clients send them. Rendering is thread-safe.

    Raises TemplateError at construction for a source that is no Jinja template.
    """

    def __init__(self, source: str | None, *, bos_token: str = "", eos_token: str = "") -> None:
        self.is_default = not source
        """The model came without a template; `DEFAULT_SOURCE` is used."""
        self.source = source or DEFAULT_SOURCE
        self.stop: tuple[str, ...] = _DEFAULT_STOPS if self.is_default else ()
        """Stop strings that belong to the format: a base model would go on to write the user's next line."""
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        try:
            with metered():
                self._template = environment().from_string(self.source)
        except Exception as error:  # beside jinja's own: too deep for Python's parser, or over a limit
            raise TemplateError(
                f"The model's chat template is not a valid Jinja template: {error}.",
                "Give another one, or use completions, which need none.",
            ) from error

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], tokenizer: Tokenizer) -> ChatTemplate:
        """The template in a GGUF file's tokenizer.chat_template, else the default."""
        return cls._of_model(metadata.get("tokenizer.chat_template"), tokenizer)

    @classmethod
    def from_folder(cls, path: Path, tokenizer: Tokenizer) -> ChatTemplate:
        """chat_template.jinja, or chat_template in tokenizer_config.json or chat_template.json, else the default."""
        file = path / "chat_template.jinja"
        if file.is_file():
            source: Any = _read(file)
        else:
            configs = (read_json(path / name) for name in ("tokenizer_config.json", "chat_template.json"))
            source = next((config["chat_template"] for config in configs if config.get("chat_template")), None)
        if isinstance(source, list):
            named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
            source = named.get("default")
        return cls._of_model(source, tokenizer)

    @classmethod
    def _of_model(cls, source: Any, tokenizer: Tokenizer) -> ChatTemplate:
        """A template writes BOS itself, where it wants one; the default format wants it where the vocabulary does."""
        has_source = isinstance(source, str) and source != ""
        bos_id = tokenizer.bos_id if has_source or tokenizer.add_bos else None
        bos, eos = (tokenizer.token_text(i) if i is not None else "" for i in (bos_id, tokenizer.eos_id))
        return cls(source if has_source else None, bos_token=bos, eos_token=eos)

    @cached_property
    def abilities(self) -> Abilities:
        """What the template can render, found out once, all attempts together within one rendering's limits."""
        with metered():
            return find_abilities(self._attempt, self.source)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,  # a variable may have any name, `self` among them
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        **variables: Any,
    ) -> str:
        """The prompt for `messages`, special tokens written out. Raises TemplateError.

        `continue_final` ends the text inside the last message, an assistant's, so that the model goes on with it.
        `variables` (enable_thinking, documents, ...) reach the template as they are.
        """
        if continue_final and not is_prefill(messages):
            raise TemplateError("Only a last message of role assistant, without tool calls, can be continued.")
        prepared = normalise(messages, self.abilities)
        if continue_final:
            _mark_end(prepared[-1])
        try:
            text = self._run(prepared, tools, add_generation_prompt and not continue_final, variables)
        except TemplateLimit as error:
            raise TemplateError(f"The model's chat template {error}.", "Take this model from another source.") from error
        except jinja2.TemplateError as error:
            raise TemplateError(f"The model's chat template refuses these messages: {error}") from error
        except Exception as error:  # a template is a program from a model file, and may fail in any way
            kind = type(error).__name__
            raise TemplateError(f"The model's chat template fails on these messages: {kind}: {error}") from error
        if not continue_final:
            return text
        end = text.rfind(_END)
        if end < 0:
            raise TemplateError("The model's chat template leaves out the last assistant message, so it cannot be continued.")
        return text[:end]

    def _run(self, messages: list[dict[str, Any]], tools: Any, add_generation_prompt: bool, variables: Mapping[str, Any]) -> str:
        own = {"messages": messages, "tools": list(tools) if tools else None, "add_generation_prompt": add_generation_prompt}
        with metered():
            return self._template.render({**variables, **self._tokens, **own})

    def _attempt(self, messages: list[dict[str, Any]], tools: Any = None) -> str | None:
        try:
            return self._run(messages, tools, False, {})
        except Exception:  # as in render(); a failure is the answer here
            return None


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TemplateError(f"{file} cannot be read: {error}.", "Download the model again.") from error


def is_prefill(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Is the last message an assistant's text, to be continued rather than answered?"""
    last = messages[-1] if messages else None
    return isinstance(last, Mapping) and last.get("role") == "assistant" and not last.get("tool_calls")


def _mark_end(last: dict[str, Any]) -> None:
    """Put the mark behind a prepared message's content, which is a string or a list of one text part."""
    if isinstance(last["content"], str):
        last["content"] += _END
    else:
        last["content"][-1]["text"] += _END
