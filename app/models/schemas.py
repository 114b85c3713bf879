"""Bodies of /api/models and /api/pulls."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from app.catalog.pulling import Offer
from app.models.host import ModelHost, State
from app.models.pulls import Pull


class ModelRequest(msgspec.Struct):
    """Which model an action is for."""

    model: Annotated[str, Meta(min_length=1, max_length=500)]


class ModelAnswer(msgspec.Struct, kw_only=True, frozen=True):
    """A model of this machine, and how it stands."""

    name: str
    state: State
    progress: float
    error: str
    """Why the last load failed."""
    waits_for: tuple[str, ...]
    is_main: bool
    """A request that names none gets it."""
    path: str
    kind: str
    size_bytes: int
    origin: str
    """Whose it is: Pagewell's, another program's, or the folder's that the settings name."""
    is_deletable: bool
    n_requests: int
    """That are queued or answered now, and that wait for it."""
    window: int | None
    """In force, in tokens; null before the first load."""
    memory_bytes: int | None
    """Weights and KV cache of a model that is in memory."""
    settings: dict[str, Any]
    """What it is loaded with, where that is not the default."""

    @classmethod
    def of(cls, host: ModelHost, main: ModelHost) -> ModelAnswer:
        model, engine, info = host.model, host.current, host.info
        return cls(
            name=host.name,
            state=host.state,
            progress=round(host.progress, 3),
            error=str(host.error) if host.error else "",
            waits_for=host.waits_for,
            is_main=host is main,
            path=str(model.path) if model else "",
            kind=model.kind if model else "",
            size_bytes=model.n_bytes if model else 0,
            origin=(model.origin or ("Pagewell" if model.managed else "yours")) if model else "",
            is_deletable=bool(model and model.managed and host is not main),
            n_requests=host.n_waiting + (engine.n_live if engine else 0),
            window=info.max_model_len if info else None,
            memory_bytes=info.weights_bytes + info.kv_bytes if info and engine else None,
            settings=host.own_settings,
        )


class ModelsAnswer(msgspec.Struct, frozen=True):
    models: list[ModelAnswer]


class Removed(msgspec.Struct, frozen=True):
    model: str
    freed_bytes: int


class RowAnswer(msgspec.Struct, kw_only=True, frozen=True):
    """A choice of a repository, as it would be on this machine."""

    name: str
    quant: str
    size_bytes: int
    bits_per_weight: float | None
    perplexity_loss: float | None
    quality: str
    most_tok_s: float | None
    window: int
    why_not: str
    is_best: bool


class OfferAnswer(msgspec.Struct, frozen=True):
    repo: str
    family: str
    rows: list[RowAnswer]

    @classmethod
    def of(cls, offer: Offer) -> OfferAnswer:
        from app.catalog import quality

        rows = [
            RowAnswer(
                name=row.choice.name,
                quant=row.choice.quant,
                size_bytes=row.choice.n_bytes,
                bits_per_weight=round(row.bits, 2) if row.bits else None,
                perplexity_loss=quality.loss(row.choice.quant),
                quality=quality.words(row.choice.quant) if row.choice.quant else "as made",
                most_tok_s=round(row.most_tok_s, 1) if row.most_tok_s else None,
                window=row.window,
                why_not=row.why_not,
                is_best=row is offer.best,
            )
            for row in offer.rows
        ]
        return cls(offer.repository.name, offer.facts.config.family, rows)


class PullAnswer(msgspec.Struct, kw_only=True, frozen=True):
    id: int
    name: str
    state: str
    done_bytes: int
    total_bytes: int
    left_s: float | None
    model: str
    error: str

    @classmethod
    def of(cls, pull: Pull) -> PullAnswer:
        return cls(
            id=pull.id,
            name=pull.name,
            state=pull.state,
            done_bytes=pull.done_bytes,
            total_bytes=pull.total_bytes,
            left_s=None if pull.left_s is None else round(pull.left_s, 1),
            model=pull.model,
            error=f"{pull.error} {pull.hint}".strip(),
        )


class PullsAnswer(msgspec.Struct, frozen=True):
    pulls: list[PullAnswer]
