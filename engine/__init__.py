"""Requests in, tokens out: scheduler, paged KV cache and model runner, without HTTP, HTML or SQL."""

import os

# torch's OpenMP threads spin while they wait for each other. On a desktop whose cores are busy with other programs that
# made a decode step 50 times slower (6.9 s instead of 0.13 s). Sleeping costs up to a third of a small model's step on an
# idle machine; whoever has one can set OMP_WAIT_POLICY=ACTIVE.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
