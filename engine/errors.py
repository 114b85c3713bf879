"""Typed errors of the engine; each carries a message for the person and a hint that says what to do."""

_MOST_QUOTED = 1000
"""Characters of a message about a file."""


class PagewellError(Exception):
    """Base of every error Pagewell raises on purpose: what is wrong, and in `hint` what to do about it."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class ConfigError(PagewellError):
    """A setting has a value that cannot be used; the message names the setting."""


class ModelLoadError(PagewellError):
    """A checkpoint cannot be loaded: missing, damaged, inconsistent or of an unsupported kind.

    The message may quote the file, whose names can be megabytes long or drive a terminal: it is cut, and shown as plain text.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(_plain(message), hint)


class InvalidRequest(PagewellError):
    """A request's value is out of range or of the wrong kind; `param` names the field."""

    def __init__(self, param: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.param = param


class TemplateError(InvalidRequest):
    """The chat template cannot render these messages, or cannot be read at all; `param` names the part that is wrong."""

    def __init__(self, message: str, hint: str = "", param: str = "messages") -> None:
        super().__init__(param, message, hint)


class PromptTooLong(PagewellError):
    """The prompt leaves no room for even one new token in the window of `max_model_len` tokens."""

    def __init__(self, n_tokens: int, max_model_len: int, *, at_least: bool = False) -> None:
        """`at_least`: the prompt was too long to be counted, and has `n_tokens` or more."""
        super().__init__(
            f"This model's maximum context length is {max_model_len} tokens. However, your messages resulted in "
            f"{'at least ' if at_least else ''}{n_tokens} tokens. Please reduce the length of the messages."
        )
        self.n_tokens = n_tokens
        self.max_model_len = max_model_len


class QueueFull(PagewellError):
    """Too many requests are waiting; the client should come back later."""


class PinRefused(PagewellError):
    """A prefix cannot be pinned: too much of the KV cache is, or nothing is cached here."""


class EngineDead(PagewellError):
    """The engine thread has stopped; no request can be served until the model is loaded again."""


class BrokenLogits(PagewellError):
    """The model's output for the requests `uids` is not a number, or nothing is left to draw from."""

    def __init__(self, uids: list[int]) -> None:
        self.uids = uids
        super().__init__(
            f"The model's output for request {', '.join(map(str, uids))} has no finite likeliest token.",
            "The weights may be damaged, or the number format too narrow for this model: try --dtype float32.",
        )


def _plain(text: str) -> str:
    """At most _MOST_QUOTED characters, and none that a terminal would take for anything but a character."""
    text = text if len(text) <= _MOST_QUOTED else f"{text[: _MOST_QUOTED - 200]} ... {text[-195:]}"
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
