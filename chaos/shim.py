"""A wrong wall clock for one process, as if its machine had never heard of NTP."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

LIBRARY = "wrong_clock.so"
VARIABLE = "CHAOS_SKEW_SECONDS"

_SOURCE = f"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

int clock_gettime(clockid_t id, struct timespec *t) {{
    static int (*real)(clockid_t, struct timespec *);
    static long skew;
    if (!real) {{
        const char *text = getenv("{VARIABLE}");
        skew = text ? atol(text) : 0;
        real = dlsym(RTLD_NEXT, "clock_gettime");
    }}
    int done = real(id, t);
    /* The monotonic clock stays right: sleeping depends on it. */
    if (!done && id == CLOCK_REALTIME) t->tv_sec += skew;
    return done;
}}
"""


def build(directory: Path) -> bool:
    """Compile the library that shifts the clock; False where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return False
    source = directory / "wrong_clock.c"
    source.write_text(_SOURCE)
    target = str(directory / LIBRARY)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", target, str(source), "-ldl"], check=True)
    return True


def environment(directory: Path, skew: float) -> dict[str, str]:
    """What a process is started with so that its clock is wrong by so many seconds."""
    if not skew:
        return {}
    return {"LD_PRELOAD": str(directory / LIBRARY), VARIABLE: str(int(skew))}
