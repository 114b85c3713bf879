"""Requests in, tokens out: scheduler, paged KV cache and model runner, without HTTP, HTML or SQL."""

import os

# torch's OpenMP threads spin while they wait for each other. On a desktop whose cores are busy with other programs that
# made a step 50 times slower (6.9 s instead of 0.13 s); threads that sleep cost nothing measurable on an idle one.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
