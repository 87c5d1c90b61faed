"""What this machine offers, what is missing, and the command that gets it: `rootbeam doctor`."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rootbeam.data.wheels import cache_folder

Status = Literal["ok", "optional", "problem"]

OLDEST_PYTHON = (3, 11)
KERNEL = "torch reference"
CPU_FEATURES = ("avx2", "avx512f", "avx512_bf16")  # what a native kernel would use, weakest first
LEAST_MEMORY_GIB = 4.0
LEAST_DISK_GIB = 2.0
GIB = 1024**3


@dataclass(frozen=True)
class Check:
    """One line of the examination; `remedy` is empty unless there is something to do."""

    name: str
    status: Status
    detail: str
    remedy: str = ""


@dataclass(frozen=True)
class Requirement:
    """A package that Rootbeam's own metadata asks for; `extra` is empty for the core."""

    package: str
    at_least: str
    extra: str


def examine() -> list[Check]:
    """Every check, in the order in which a person would want to read them. Never raises."""
    requirements = declared_requirements()
    return [
        python_check(sys.version_info[:3]),
        *package_checks(requirements),
        *torch_checks(),
        cpu_features_check(read_text(Path("/proc/cpuinfo"))),
        Check("kernel", "ok", KERNEL),
        memory_check(read_text(Path("/proc/meminfo"))),
        disk_check(Path.cwd()),
        cache_check(cache_folder()),
        *extra_checks(requirements),
    ]


def python_check(version: tuple[int, ...]) -> Check:
    detail = ".".join(map(str, version))
    if version[:2] >= OLDEST_PYTHON:
        return Check("python", "ok", detail)
    needed = ".".join(map(str, OLDEST_PYTHON))
    return Check("python", "problem", detail, f"install Python {needed} or newer")


def declared_requirements() -> list[Requirement]:
    """What the installed package asks for, read from its metadata so that it cannot go stale."""
    try:
        lines = importlib.metadata.requires("rootbeam") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [requirement for line in lines if (requirement := parse_requirement(line))]


def parse_requirement(line: str) -> Requirement | None:
    """`altair>=5.5; extra == 'report'` -> Requirement("altair", "5.5", "report")."""
    package = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", line)
    if package is None:
        return None
    bound = re.search(r">=\s*([0-9.]+)", line.partition(";")[0])
    extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", line)
    return Requirement(package[0], bound[1] if bound else "0", extra[1] if extra else "")


def package_checks(requirements: list[Requirement]) -> list[Check]:
    """One check per package of the core, against the lower bound that Rootbeam declares."""
    if not requirements:
        return [Check("rootbeam", "problem", "not installed as a package", "pip install -e . in its folder")]
    return [package_check(requirement) for requirement in requirements if not requirement.extra]


def package_check(requirement: Requirement) -> Check:
    version = installed_version(requirement.package)
    remedy = f'pip install "{requirement.package}>={requirement.at_least}"'
    if version is None:
        return Check(requirement.package, "problem", "not installed", remedy)
    if numbers(version) < numbers(requirement.at_least):
        detail = f"{version}, older than {requirement.at_least}"
        return Check(requirement.package, "problem", detail, remedy)
    return Check(requirement.package, "ok", version)


def extra_checks(requirements: list[Requirement]) -> list[Check]:
    """One check per extra, `dev` aside: all of its packages, or the command that gets them."""
    extras = dict.fromkeys(r.extra for r in requirements if r.extra not in ("", "dev"))
    return [extra_check(extra, [r for r in requirements if r.extra == extra]) for extra in extras]


def extra_check(extra: str, requirements: list[Requirement]) -> Check:
    wanting = [r.package for r in requirements if package_check(r).status != "ok"]
    if not wanting:
        versions = (f"{r.package} {installed_version(r.package)}" for r in requirements)
        return Check(f"extra {extra}", "ok", ", ".join(versions))
    detail = f"missing or too old: {', '.join(wanting)}"
    return Check(f"extra {extra}", "optional", detail, f'pip install "rootbeam[{extra}]"')


def installed_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def numbers(version: str) -> tuple[int, ...]:
    """(2, 13) of `2.13.0+cpu`: the leading numbers, trailing zeros dropped so that 2.0 equals 2."""
    release = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    parts = [int(part) for part in release[0].split(".")] if release else [0]
    while len(parts) > 1 and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


def torch_checks() -> list[Check]:
    """The device training would use, and the threads torch would take; torch is imported only here."""
    try:
        import torch
    except Exception as error:  # a broken build fails with OSError or worse, not only ImportError
        reason = str(error).partition("\n")[0]
        detail = f"torch cannot be imported: {reason}"
        return [Check("device", "problem", detail, 'pip install --force-reinstall "torch>=2.11"')]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an old driver makes torch warn; the detail below says as much
        name = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    return [device_check(torch.version.cuda, name), threads_check(torch.get_num_threads(), usable_cores())]


def device_check(cuda_build: str | None, device_name: str | None) -> Check:
    if device_name is not None:
        return Check("device", "ok", f"cuda: {device_name} (torch built for CUDA {cuda_build})")
    if cuda_build is None:
        return Check("device", "ok", "cpu (torch is the CPU-only build)")
    return Check("device", "ok", f"cpu (torch is built for CUDA {cuda_build}, but finds no usable device)")


def threads_check(torch_threads: int, cores: int) -> Check:
    detail = f"{torch_threads} used by torch, {cores} cores usable"
    if torch_threads > cores:
        return Check("threads", "problem", detail, f"export OMP_NUM_THREADS={cores}")
    return Check("threads", "ok", detail)


def usable_cores() -> int:
    """Cores this process may run on, which a container or taskset makes fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_features_check(cpuinfo: str) -> Check:
    found = cpu_features(cpuinfo)
    if found is None:
        return Check("cpu features", "ok", f"not told by this system ({platform.machine()})")
    return Check("cpu features", "ok", ", ".join(found) or f"none of {', '.join(CPU_FEATURES)}")


def cpu_features(cpuinfo: str) -> list[str] | None:
    """Those of CPU_FEATURES that the first core has; None where the system lists no flags."""
    flags = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    if flags is None:
        return None
    has = set(flags[1].split())
    return [feature for feature in CPU_FEATURES if feature in has]


def memory_check(meminfo: str) -> Check:
    """`meminfo` counts in kibibytes."""
    kib = {name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+) kB$", meminfo, re.MULTILINE)}
    if not {"MemAvailable", "MemTotal"} <= kib.keys():
        return Check("memory", "ok", "not told by this system")
    free_gib, total_gib = kib["MemAvailable"] * 1024 / GIB, kib["MemTotal"] * 1024 / GIB
    detail = f"{free_gib:.1f} GiB free of {total_gib:.1f}"
    if free_gib < LEAST_MEMORY_GIB:
        remedy = f"free {LEAST_MEMORY_GIB:.0f} GiB, or ask `rootbeam data describe` what your log needs"
        return Check("memory", "problem", detail, remedy)
    return Check("memory", "ok", detail)


def disk_check(folder: Path) -> Check:
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        return Check("disk", "problem", f"{folder}: {error.strerror}", "change to a folder that can be read")
    detail = f"{usage.free / GIB:.1f} GiB free of {usage.total / GIB:.1f}"
    if usage.free / GIB < LEAST_DISK_GIB:
        return Check("disk", "problem", detail, f"free {LEAST_DISK_GIB:.0f} GiB, or work on another disk")
    return Check("disk", "ok", detail)


def cache_check(folder: Path) -> Check:
    """Writes and removes one empty file in the folder, or in its nearest ancestor that exists."""
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with tempfile.NamedTemporaryFile(dir=nearest):
            return Check("cache", "ok", str(folder))
    except OSError as error:
        detail = f"{folder}: {error.strerror}"
        return Check("cache", "problem", detail, "export XDG_CACHE_HOME=FOLDER with one you can write to")


def read_text(path: Path) -> str:
    """The file's text, or nothing where the system has no such file."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
