from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from rootbeam import doctor
from rootbeam.doctor import Check, Requirement

GIB_IN_KIB = 1024 * 1024


def by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


def test_examine_covers_what_the_page_promises() -> None:
    checks = by_name(doctor.examine())
    promised = {"python", "torch", "numpy", "polars", "device", "threads", "cpu features", "kernel"}
    assert promised | {"memory", "disk", "cache", "extra report", "extra tune"} <= checks.keys()
    assert checks["torch"].detail == importlib.metadata.version("torch")
    assert checks["kernel"].detail == "torch reference"
    assert len(checks) == len(doctor.examine()), "two checks share a name"


def test_what_is_not_ok_says_what_to_do_and_nothing_else_does() -> None:
    for check in doctor.examine():
        assert bool(check.remedy) == (check.status != "ok"), check
        assert "\n" not in check.detail + check.remedy


def test_checks_are_plain_json() -> None:
    dicts = [asdict(check) for check in doctor.examine()]
    assert json.loads(json.dumps(dicts)) == dicts


@pytest.mark.parametrize(
    ("version", "status"),
    [
        ((3, 10, 14), "problem"),
        ((2, 7, 18), "problem"),
        ((3, 11, 0), "ok"),
        ((3, 12, 4), "ok"),
        ((4, 0, 0), "ok"),
    ],
)
def test_python_before_3_11_is_a_problem(version: tuple[int, ...], status: str) -> None:
    assert doctor.python_check(version).status == status


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("numpy>=2.0", Requirement("numpy", "2.0", "")),
        ("numpy", Requirement("numpy", "0", "")),
        ("altair>=5.5; extra == 'report'", Requirement("altair", "5.5", "report")),
        ('vl-convert-python>=1.7; extra == "report"', Requirement("vl-convert-python", "1.7", "report")),
        ("torch<3,>=2.11", Requirement("torch", "2.11", "")),
        ("pytest; python_version >= '3.12' and extra == 'dev'", Requirement("pytest", "0", "dev")),
        ("", None),
    ],
)
def test_requirements_are_read_from_metadata_lines(line: str, expected: Requirement | None) -> None:
    assert doctor.parse_requirement(line) == expected


@pytest.mark.parametrize(
    ("version", "bound", "old_enough"),
    [
        ("2.13.0+cpu", "2.11", True),
        ("2.9.1", "2.11", False),  # numbers, not text: "9" sorts after "11"
        ("2", "2.0", True),
        ("2.0.0rc1", "2.0", True),
        ("1.9.0.post1", "1.9", True),
        ("0.4.9", "0.5", False),
    ],
)
def test_versions_compare_as_numbers(version: str, bound: str, old_enough: bool) -> None:
    assert (doctor.numbers(version) >= doctor.numbers(bound)) == old_enough


def pretend_installed(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str]) -> None:
    monkeypatch.setattr(doctor, "installed_version", versions.get)


def test_a_core_package_missing_or_old_is_a_problem_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_installed(monkeypatch, {"numpy": "1.26.4", "torch": "2.13.0"})
    wanted = [
        Requirement("numpy", "2.0", ""),
        Requirement("torch", "2.11", ""),
        Requirement("polars", "1.30", ""),
    ]
    checks = by_name(doctor.package_checks(wanted))
    assert [checks[name].status for name in ("numpy", "torch", "polars")] == ["problem", "ok", "problem"]
    assert checks["numpy"].remedy == 'pip install "numpy>=2.0"'
    assert "1.26.4" in checks["numpy"].detail


def test_an_extra_is_whole_or_names_the_command_that_completes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_installed(monkeypatch, {"altair": "6.3.0", "optuna": "5.0.0"})
    requirements = [
        Requirement("numpy", "2.0", ""),
        Requirement("altair", "5.5", "report"),
        Requirement("vl-convert-python", "1.7", "report"),
        Requirement("optuna", "4.0", "tune"),
        Requirement("pytest", "8", "dev"),
    ]
    checks = by_name(doctor.extra_checks(requirements))
    assert checks.keys() == {"extra report", "extra tune"}
    assert checks["extra report"] == Check(
        "extra report", "optional", "missing or too old: vl-convert-python", 'pip install "rootbeam[report]"'
    )
    assert checks["extra tune"] == Check("extra tune", "ok", "optuna 5.0.0")


def test_without_metadata_the_package_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", absent)
    (check,) = doctor.package_checks(doctor.declared_requirements())
    assert (check.name, check.status) == ("rootbeam", "problem")


def test_a_broken_torch_is_reported_and_never_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # makes `import torch` fail
    checks = by_name(doctor.examine())
    assert checks["device"].status == "problem"
    assert "threads" not in checks


@pytest.mark.parametrize(
    ("build", "name", "detail"),
    [
        (None, None, "cpu (torch is the CPU-only build)"),
        ("13.0", None, "cpu (torch is built for CUDA 13.0, but finds no usable device)"),
        ("13.0", "NVIDIA H200", "cuda: NVIDIA H200 (torch built for CUDA 13.0)"),
    ],
)
def test_the_device_line_says_build_and_device(build: str | None, name: str | None, detail: str) -> None:
    assert doctor.device_check(build, name) == Check("device", "ok", detail)


def test_more_threads_than_cores_is_a_problem() -> None:
    assert doctor.threads_check(8, 8).status == "ok"
    assert doctor.threads_check(8, 2) == Check(
        "threads", "problem", "8 used by torch, 2 cores usable", "export OMP_NUM_THREADS=2"
    )


@pytest.mark.parametrize(
    ("cpuinfo", "features"),
    [
        ("processor\t: 0\nflags\t\t: fpu sse2 avx2 fma\n\nprocessor\t: 1\n", ["avx2"]),
        ("flags\t\t: avx512_bf16 avx512f avx2\n", ["avx2", "avx512f", "avx512_bf16"]),
        ("flags\t\t: fpu avx\n", []),
        ("vmx flags\t: avx2\nFeatures\t: asimd\n", None),  # an ARM core lists Features
        ("", None),
    ],
)
def test_cpu_features_are_those_of_the_flags_line(cpuinfo: str, features: list[str] | None) -> None:
    assert doctor.cpu_features(cpuinfo) == features


@pytest.mark.parametrize(("available_gib", "status"), [(12, "ok"), (4, "ok"), (3, "problem"), (0, "problem")])
def test_little_memory_is_a_problem(available_gib: int, status: str) -> None:
    meminfo = f"MemTotal:       {16 * GIB_IN_KIB} kB\nMemAvailable:   {available_gib * GIB_IN_KIB} kB\n"
    check = doctor.memory_check(meminfo)
    assert (check.status, check.detail) == (status, f"{available_gib}.0 GiB free of 16.0")


def test_a_system_without_proc_still_gets_its_answers() -> None:
    nothing = doctor.read_text(Path("no") / "such" / "file")
    assert nothing == ""
    assert doctor.memory_check(nothing).status == "ok"
    assert doctor.cpu_features_check(nothing).status == "ok"


def test_a_vanished_working_folder_is_a_problem(tmp_path: Path) -> None:
    assert "GiB free" in doctor.disk_check(tmp_path).detail
    assert doctor.disk_check(tmp_path / "gone").status == "problem"


def test_the_cache_is_tried_out_without_being_made(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    assert doctor.cache_check(folder) == Check("cache", "ok", str(folder))
    assert os.listdir(tmp_path) == []


def test_a_cache_that_cannot_be_written_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    check = doctor.cache_check(tmp_path / "file" / "rootbeam")
    assert check.status == "problem"
    assert check.remedy
