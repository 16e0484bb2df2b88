"""Starting actors from their venvs: which interpreter each gets, and venvs on every node of a Ray cluster.

Ray can start workers by `uv run` on its own when the driver was started by it. Actors here have interpreters of their
own, so that hook is switched off; Ray reads the setting when it is first imported, so import greenroom.distributed
before ray.
"""

import os
import sys
import warnings

UV_HOOK = "RAY_ENABLE_UV_RUN_RUNTIME_ENV"

if os.environ.setdefault(UV_HOOK, "0") != "0":
    warnings.warn(f"{UV_HOOK} is not 0: Ray may start actors by uv run instead of their venvs", stacklevel=2)
elif getattr(sys.modules.get("ray._private.ray_constants"), UV_HOOK, False):
    warnings.warn(
        f"ray was imported before greenroom.distributed: set {UV_HOOK}=0, or import greenroom.distributed first",
        stacklevel=2,
    )
