"""What the tokenizers package raises, which is written in Rust: bare Exception, or a panic, which is no Exception.

It panics where nobody thought of what it was given, a tokenizer.json that says odd things for one.
"""

from __future__ import annotations

from engine.errors import PagewellError


def is_panic(error: BaseException) -> bool:
    return type(error).__name__ == "PanicException"  # a class that cannot be imported


def refuses(error: BaseException) -> bool:
    """Whether it says that something is wrong with what the package was given, as yet without a type of ours."""
    return is_panic(error) or (isinstance(error, Exception) and not isinstance(error, PagewellError))
