"""The stats feed: a sampler, frames and deltas over server-sent events, and control actions on what they show."""

from app.stats.plugin import StatsPlugin

__all__ = ["StatsPlugin"]
