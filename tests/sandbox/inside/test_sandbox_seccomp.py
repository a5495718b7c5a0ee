"""The filter, run by a small interpreter of classic BPF: what it says to every call number on both architectures."""

from __future__ import annotations

import errno
import random

import pytest

from assay.sandbox.inside.seccomp import (
    AUDIT,
    IOCTL_HARMLESS,
    PRCTL_HARMLESS,
    UVM_START_STOP,
    X32_BIT,
    Instruction,
    assemble,
)
from assay.sandbox.inside.syscalls import CHECKED, COMPILERS_ONLY, DEVICES_ONLY, FORBIDDEN, NUMBERS, allowed

ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
ARCHITECTURES = list(NUMBERS)


def verdict(program: list[Instruction], architecture: int, number: int, *arguments: int) -> int:
    """What the kernel would do with a call: the returned action."""
    words = {0: number, 4: architecture}
    for index, value in enumerate([*arguments, *[0] * (6 - len(arguments))]):
        words[16 + 8 * index] = value & 0xFFFFFFFF
        words[20 + 8 * index] = value >> 32 & 0xFFFFFFFF
    at, accumulator = 0, 0
    while True:
        code, yes, no, operand = program[at]
        at += 1
        if code == 0x06:
            return operand
        if code == 0x20:
            accumulator = words[operand]
            continue
        if code == 0x54:
            accumulator &= operand
            continue
        holds = {
            0x15: accumulator == operand,
            0x35: accumulator >= operand,
            0x25: accumulator > operand,
            0x45: bool(accumulator & operand),
        }[code]
        at += yes if holds else no


@pytest.mark.parametrize("devices", [False, True])
@pytest.mark.parametrize("compilers", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_call_passes_only_if_its_profile_names_it(architecture: str, compilers: bool, devices: bool) -> None:
    program = assemble(architecture, compilers, devices)
    names = {number: name for name, number in NUMBERS[architecture].items()}
    for number in range(600):
        if names.get(number) in CHECKED:
            continue
        action = verdict(program, AUDIT[architecture], number)
        if number in allowed(architecture, compilers, devices):
            assert action == ALLOW, names[number]
        else:
            assert action == ERRNO | (errno.ENOSYS if number >= 424 else errno.EPERM), number


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_numbers_are_unique_and_profiles_differ_by_processes(architecture: str) -> None:
    numbers = NUMBERS[architecture]
    assert len(set(numbers.values())) == len(numbers)
    more = allowed(architecture, True) - allowed(architecture, False)
    assert more == {numbers[name] for name in COMPILERS_ONLY if name in numbers}
    more = allowed(architecture, False, True) - allowed(architecture, False)
    assert more == {numbers[name] for name in DEVICES_ONLY if name in numbers}
    assert not allowed(architecture, True, True) & {numbers[name] for name in FORBIDDEN}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_only_drivers_are_asked_and_only_for_devices(architecture: str) -> None:
    numbers, here = NUMBERS[architecture], AUDIT[architecture]
    numerics, devices = assemble(architecture, False), assemble(architecture, False, True)
    alloc_memory, uvm_register = 0xC0384627, 37
    for request in (alloc_memory, uvm_register, *UVM_START_STOP):
        assert verdict(devices, here, numbers["ioctl"], 0, request) == ALLOW
        assert verdict(numerics, here, numbers["ioctl"], 0, request) == ERRNO | errno.ENOTTY
    for request in (0x5412, 0x5408, 0x4B00, 0xC0384627 | 1 << 32, 0x8933, 0x100):
        assert verdict(devices, here, numbers["ioctl"], 0, request) == ERRNO | errno.ENOTTY
    for program in (numerics, devices):
        assert all(verdict(program, here, numbers["ioctl"], 0, request) == ALLOW for request in IOCTL_HARMLESS)
        assert all(verdict(program, here, numbers["socket"], family) != ALLOW for family in (0, 2, 10, 16, 17, 40))
    assert verdict(devices, here, numbers["socket"], 1) == ALLOW
    assert verdict(numerics, here, numbers["socket"], 1) == ERRNO | errno.EPERM


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_foreign_calls_kill(architecture: str) -> None:
    program = assemble(architecture, False)
    for foreign in (0x40000003, *(code for code in AUDIT.values() if code != AUDIT[architecture])):
        assert verdict(program, foreign, 0) == KILL
    if architecture == "x86_64":
        assert verdict(program, AUDIT[architecture], X32_BIT | 1) == KILL


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_arguments_are_looked_at(architecture: str) -> None:
    numbers, here = NUMBERS[architecture], AUDIT[architecture]
    numerics, compilers = assemble(architecture, False), assemble(architecture, True)
    thread = 0x3D0F00
    assert verdict(numerics, here, numbers["clone"], thread) == ALLOW
    assert verdict(numerics, here, numbers["clone"], 17) == ERRNO | errno.EPERM
    assert verdict(compilers, here, numbers["clone"], 17) == ALLOW
    for program in (numerics, compilers):
        for namespace in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000, 0x80):
            assert verdict(program, here, numbers["clone"], thread | namespace) == ERRNO | errno.EPERM
        assert verdict(program, here, numbers["clone3"]) == ERRNO | errno.ENOSYS
        assert all(verdict(program, here, numbers["prctl"], option) == ALLOW for option in PRCTL_HARMLESS)
        assert verdict(program, here, numbers["prctl"], 15 | 1 << 32) == ERRNO | errno.EPERM
        assert all(verdict(program, here, numbers["ioctl"], 0, request) == ALLOW for request in IOCTL_HARMLESS)
        assert verdict(program, here, numbers["ioctl"], 0, 0x5412) == ERRNO | errno.ENOTTY
        assert verdict(program, here, numbers["prlimit64"], 0) == ALLOW
        assert verdict(program, here, numbers["prlimit64"], 1) == ERRNO | errno.EPERM


def test_random_arguments_change_nothing_for_other_calls() -> None:
    draw = random.Random(0)
    for architecture in ARCHITECTURES:
        program = assemble(architecture, False)
        checked = {NUMBERS[architecture][name] for name in CHECKED}
        for _ in range(2000):
            number = draw.randrange(600)
            if number not in checked:
                arguments = [draw.getrandbits(64) for _ in range(6)]
                here = AUDIT[architecture]
                assert verdict(program, here, number, *arguments) == verdict(program, here, number)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("devices", [False, True])
@pytest.mark.parametrize("compilers", [False, True])
def test_the_kernel_would_take_the_program(architecture: str, compilers: bool, devices: bool) -> None:
    program = assemble(architecture, compilers, devices)
    assert len(program) < 4096
    assert program[-1][0] == 0x06
    for place, (code, yes, no, _) in enumerate(program):
        assert 0 <= yes < 256
        assert 0 <= no < 256
        if code not in (0x06, 0x20, 0x54):
            assert place + 1 + max(yes, no) < len(program)
