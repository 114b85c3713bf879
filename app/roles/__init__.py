"""A prefill and a decode server on one machine: how one asks the other to compute a prompt. The KV itself goes by the engine's
SharedTier.
"""

from app.roles.plugin import RolesPlugin

__all__ = ["RolesPlugin"]
