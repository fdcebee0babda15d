"""Local memory of kernels: the driver takes it at the first launch of a kernel that needs more than its context has.

Measured on an H100 with driver 580: so many bytes for every thread that can be resident, the largest kernel counts.
"""

from __future__ import annotations

import struct

import pytest

from tests.native.driven import (
    CONTEXT,
    MIB,
    OUT,
    OUT_OF_MEMORY,
    SUCCESS,
    Container,
    Program,
    held,
)

LIMIT = 256 * MIB
FOUR = 96 * MIB
"""What 4 KiB a thread take on 16 SMs with 2048 threads, less the 1 KiB of every context."""
SIX = 160 * MIB
STACK = 0
KERNEL_NODE = 0


def config(grid: int = 1, stream: int = 0) -> bytes:
    return struct.pack("<7I4xQQI4x", grid, 1, 1, 1, 1, 1, 0, stream, 0, 0)


def node_params(function: int, kernel: int = 0) -> bytes:
    return struct.pack("<Q7I4xQQQQ", function, 1, 1, 1, 1, 1, 1, 0, 0, 0, kernel, 0)


def function_of(guest: Program, name: str) -> int:
    """Of a module whose image is no text: the stand-in believes every name."""
    module = guest("cuModuleLoadData", OUT, '"image').value
    return guest("cuModuleGetFunction", OUT, module, '"' + name).value


def kernel_of(guest: Program, name: str) -> int:
    library = guest("cuLibraryLoadData", OUT, '"image', 0, 0, 0, 0, 0, 0).value
    return guest("cuLibraryGetKernel", OUT, library, '"' + name).value


def launched(guest: Program, function: int) -> int:
    return guest("cuLaunchKernelEx", config(), function, 0, 0).result


@pytest.fixture
def guest(container: Container) -> Program:
    container.change(memory_limit=LIMIT)
    return container.program(module_kib=0).start()  # code takes none, to see what else does


def test_the_first_launch_of_a_large_kernel_is_charged_and_the_largest_counts(
    container: Container, guest: Program
) -> None:
    small, four, again = (
        function_of(guest, name) for name in ("spin_1us", "a_local4096_1us", "b_local4096_1us")
    )
    assert held(container, guest) == 0, "getting a function takes nothing"
    assert launched(guest, small) == SUCCESS
    assert held(container, guest) == 0
    for function in (four, four, again, small):
        assert launched(guest, function) == SUCCESS
        assert held(container, guest) == FOUR
    assert launched(guest, function_of(guest, "c_local6144_1us")) == SUCCESS
    assert held(container, guest) == SIX
    assert guest("cuDevicePrimaryCtxReset_v2", 0).result == SUCCESS
    assert container.charged() == 0
    guest.context()
    assert launched(guest, function_of(guest, "c_local6144_1us")) == SUCCESS
    assert held(container, guest) == SIX


def test_a_launch_past_the_limit_is_refused_and_takes_nothing(container: Container, guest: Program) -> None:
    large, four = (function_of(guest, name) for name in ("a_local65536_1us", "b_local4096_1us"))
    for _ in range(2):
        assert launched(guest, large) == OUT_OF_MEMORY
        assert container.charged() == guest.card_used() == CONTEXT
    assert launched(guest, four) == SUCCESS
    assert held(container, guest) == FOUR
    assert launched(guest, large) == OUT_OF_MEMORY
    container.change(memory_limit=4096 * MIB)
    assert launched(guest, large) == SUCCESS
    assert held(container, guest) == 2016 * MIB


PTX = b".version 8.0\n.visible .entry deep()\n{\n .local .align 8 .b8 depot[4096];\n ret;\n}\n\0"


@pytest.mark.parametrize("way", ["kernel", "function of a kernel", "listed kernel", "listed function"])
def test_however_the_program_got_the_kernel(container: Container, guest: Program, way: str) -> None:
    if way == "listed function":
        module = guest("cuModuleLoadData", OUT, PTX).out[0]
        function = guest("cuModuleEnumerateFunctions", OUT, 1, module).value
    elif way == "listed kernel":
        library = guest("cuLibraryLoadData", OUT, PTX, 0, 0, 0, 0, 0, 0).out[0]
        function = guest("cuLibraryEnumerateKernels", OUT, 1, library).value
    else:
        function = kernel_of(guest, "a_local4096_1us")
    if way == "function of a kernel":
        function = guest("cuKernelGetFunction", OUT, function).value
    assert launched(guest, function) == SUCCESS
    assert held(container, guest) == FOUR


def test_every_context_that_launches_a_librarys_kernel_pays_its_own(
    container: Container, guest: Program
) -> None:
    container.change(memory_limit=4 * LIMIT)
    kernel = kernel_of(guest, "a_local4096_1us")
    assert launched(guest, kernel) == SUCCESS
    other = guest("cuCtxCreate_v2", OUT, 0, 0).value
    assert container.charged() == 2 * CONTEXT + FOUR
    assert launched(guest, kernel) == launched(guest, kernel) == SUCCESS
    assert container.charged() == guest.card_used() == 2 * (CONTEXT + FOUR)
    assert guest("cuCtxDestroy_v2", other).result == SUCCESS
    assert container.charged() == CONTEXT + FOUR


def test_stacks_and_local_memory_are_one_and_the_larger_counts(container: Container, guest: Program) -> None:
    six = function_of(guest, "a_local6144_1us")
    assert guest("cuCtxSetLimit", STACK, 4096).result == SUCCESS
    assert held(container, guest) == FOUR
    assert launched(guest, function_of(guest, "b_local4096_1us")) == SUCCESS
    assert held(container, guest) == FOUR
    assert launched(guest, six) == SUCCESS
    assert held(container, guest) == SIX
    assert guest("cuCtxSetLimit", STACK, 5120).result == SUCCESS
    assert guest("cuCtxSetLimit", STACK, 1024).result == SUCCESS
    assert held(container, guest) == SIX
    assert guest("cuCtxSetLimit", STACK, 65536).result == OUT_OF_MEMORY
    assert held(container, guest) == SIX


LAUNCHES = {
    "cuLaunchKernelEx": lambda f, s: ("cuLaunchKernelEx", config(1, s), f, 0, 0),
    "cuLaunchKernelEx_ptsz": lambda f, s: ("cuLaunchKernelEx_ptsz", config(1, s), f, 0, 0),
    "cuLaunchCooperativeKernel": lambda f, s: ("cuLaunchCooperativeKernel", f, 1, 1, 1, 1, 1, 1, 0, s, 0),
    "cuLaunch": lambda f, _: ("cuLaunch", f),
    "cuLaunchGrid": lambda f, _: ("cuLaunchGrid", f, 1, 1),
    "cuLaunchGridAsync": lambda f, s: ("cuLaunchGridAsync", f, 1, 1, s),
    "cuLaunchCooperativeKernelMultiDevice": lambda f, s: (
        "cuLaunchCooperativeKernelMultiDevice",
        struct.pack("<Q7I4xQQ", f, 1, 1, 1, 1, 1, 1, 0, s, 0),
        1,
        0,
    ),
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_every_launch_is_looked_at(container: Container, guest: Program, name: str) -> None:
    stream = guest("cuStreamCreate", OUT, 1).value
    large, four = (function_of(guest, name) for name in ("a_local65536_1us", "b_local4096_1us"))
    assert guest(*LAUNCHES[name](large, stream)).result == OUT_OF_MEMORY
    assert container.charged() == guest.card_used()
    before = held(container, guest)
    assert guest(*LAUNCHES[name](four, stream)).result == SUCCESS
    assert held(container, guest) == before + FOUR


def graph_of(guest: Program, *functions: int, kernel: int = 0) -> tuple[int, list[int]]:
    graph = guest("cuGraphCreate", OUT, 0).value
    add = [guest("cuGraphAddKernelNode_v2", OUT, graph, 0, 0, node_params(f, kernel)) for f in functions]
    assert {answer.result for answer in add} == {SUCCESS}
    return graph, [answer.out[0] for answer in add]


def test_a_graph_pays_for_its_kernels_before_it_is_executable(container: Container, guest: Program) -> None:
    small, four, large = (function_of(guest, n) for n in ("spin_1us", "a_local4096_1us", "b_local65536_1us"))
    graph, _ = graph_of(guest, small, large)
    for make in ("cuGraphInstantiateWithFlags", "cuGraphInstantiate", "cuGraphInstantiate_v2"):
        assert guest(make, OUT, graph, 0, 0, 0).result == OUT_OF_MEMORY
    assert guest("cuGraphInstantiateWithParams", OUT, graph, bytes(32)).result == OUT_OF_MEMORY
    assert container.charged() == guest.card_used() == CONTEXT
    parent = guest("cuGraphCreate", OUT, 0).value
    child, nodes = graph_of(guest, small, four)
    assert guest("cuGraphAddChildGraphNode", OUT, parent, 0, 0, child).result == SUCCESS
    exec_ = guest("cuGraphInstantiateWithFlags", OUT, parent, 0).value
    assert container.charged() == CONTEXT + FOUR
    assert guest("cuGraphLaunch", exec_, 0).result == SUCCESS
    assert held(container, guest) == FOUR
    exec_ = guest("cuGraphInstantiateWithFlags", OUT, child, 0).value
    for name in ("cuGraphExecKernelNodeSetParams", "cuGraphExecKernelNodeSetParams_v2"):
        assert guest(name, exec_, nodes[0], node_params(large)).result == OUT_OF_MEMORY
        assert guest(name, exec_, nodes[0], node_params(four)).result == SUCCESS
    whole = struct.pack("<4i", KERNEL_NODE, 0, 0, 0) + node_params(large) + bytes(168)
    assert guest("cuGraphExecNodeSetParams", exec_, nodes[0], whole).result == OUT_OF_MEMORY
    for name in ("cuGraphExecUpdate", "cuGraphExecUpdate_v2"):
        assert guest(name, exec_, graph, OUT, OUT).result == OUT_OF_MEMORY
    assert held(container, guest) == FOUR


def test_a_graph_of_a_librarys_kernel_pays_too(container: Container, guest: Program) -> None:
    graph, _ = graph_of(guest, 0, kernel=kernel_of(guest, "a_local4096_1us"))
    exec_ = guest("cuGraphInstantiateWithFlags", OUT, graph, 0).value
    assert guest("cuGraphLaunch", exec_, 0).result == SUCCESS
    assert held(container, guest) == FOUR


def test_what_is_captured_pays_when_its_graph_becomes_executable(
    container: Container, guest: Program
) -> None:
    four, stream = function_of(guest, "a_local4096_1us"), guest("cuStreamCreate", OUT, 1).value
    before = held(container, guest)
    assert guest("cuStreamBeginCapture_v2", stream, 1).result == SUCCESS
    for _ in range(2):
        assert guest("cuLaunchKernelEx", config(1, stream), four, 0, 0).result == SUCCESS
    graph = guest("cuStreamEndCapture", stream, OUT).value
    assert held(container, guest) == before
    exec_ = guest("cuGraphInstantiateWithFlags", OUT, graph, 0).value
    assert container.charged() == CONTEXT + before + FOUR
    assert guest("cuGraphLaunch", exec_, stream).result == SUCCESS
    assert guest("cuLaunchKernelEx", config(1, stream), four, 0, 0).result == SUCCESS
    assert held(container, guest) == before + FOUR


def test_a_function_that_cannot_be_asked_is_launched_as_ever(container: Container) -> None:
    guest = container.program(module_kib=0, fail="cuFuncGetAttribute=1,cuKernelGetAttribute=1").start()
    for function in (function_of(guest, "a_local4096_1us"), kernel_of(guest, "b_local4096_1us")):
        assert launched(guest, function) == SUCCESS
    assert container.charged() == CONTEXT


def test_a_function_in_the_place_of_an_unloaded_one_is_asked_anew(
    container: Container, guest: Program
) -> None:
    module = guest("cuModuleLoadData", OUT, '"image').value
    function = guest("cuModuleGetFunction", OUT, module, '"spin_1us').value
    assert launched(guest, function) == SUCCESS
    assert guest("cuModuleUnload", module).result == SUCCESS
    assert launched(guest, function_of(guest, "a_local4096_1us")) == SUCCESS
    assert held(container, guest) == FOUR
