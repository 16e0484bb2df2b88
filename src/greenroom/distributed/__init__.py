"""Starting actors from their venvs: which interpreter each gets, and venvs on every node of a Ray cluster.

Ray can start workers by `uv run` on its own when the driver was started by it. Actors here have interpreters of their
own, so that hook is switched off, whichever of the two is imported first.
"""

import os
import sys
import warnings

UV_HOOK = "RAY_ENABLE_UV_RUN_RUNTIME_ENV"

if os.environ.setdefault(UV_HOOK, "0") != "0":
    warnings.warn(f"{UV_HOOK} is not 0: Ray may start actors by uv run instead of their venvs", stacklevel=2)
elif (constants := sys.modules.get("ray._private.ray_constants")) is not None:
    # Ray was imported first, and has read the setting; it looks at this again when a driver connects.
    setattr(constants, UV_HOOK, False)
