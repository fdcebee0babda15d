"""What libvcuda has to hold, group by group, and the tests that hold it: no group without one.

Columns are the five drivers (12.2, 12.4, 12.9, 13.0, 13.5), the doors (the driver's place, ``/etc/ld.so.preload``,
both), and the machines (x86-64 by gcc and clang, aarch64). Where a figure is the point, the row of ``make bench`` that
measures it stands beside the test; ``gpu`` marks what only a real card can show, and ``make gpu`` runs.
"""

from __future__ import annotations

import ast
import functools

import pytest

from tests.native import fake_driver, standin
from tests.native.driven import DOORS
from tests.native.test_hostile import MOUNT, PRELOAD
from tests.native.tools import ROOT

# area → group → "file: test", "bench: row", "gpu: row" (below tests/native, bench, tests/gpu) or "security: words of a row".
MATRIX: dict[str, dict[str, tuple[str, ...]]] = {
    "resolution": {
        "every name of every release, by dlsym": (
            "interposer_forward: every_name_reaches_the_drivers_function_and_a_missing_one_answers_not_found",
            "interposer_symbols: it_exports_every_name_of_every_release_and_one_for_the_address_sanitizer",
        ),
        "every variant of every release, by both forms of the resolver and in both stream modes": (
            "resolver: every_variant_of_a_release_is_the_drivers_own_or_our_hook_of_exactly_that_one",
            "resolver: the_newest_variant_not_newer_than_asked_is_found_for_any_version",
            "memory_model: names_of_the_resolver_and_of_the_linker_reach_the_same_account",
        ),
        "hooked if and only if listed": (
            "resolver: every_variant_of_a_release_is_the_drivers_own_or_our_hook_of_exactly_that_one",
            "resolver: a_function_that_shares_its_address_with_a_hooked_one_is_not_hooked",
            "interposer_symbols: every_hook_is_an_exported_name",
        ),
        "the resolver asked for itself": (
            "resolver: asking_for_the_resolver_gives_ourselves_in_the_form_of_that_version",
        ),
        "codes, statuses, missing pointers": (
            "resolver: codes_and_status_are_the_drivers_own",
            "resolver: a_status_pointer_may_be_missing",
        ),
        "names nobody knows": (
            "resolver: a_name_that_the_tables_lack_passes_and_is_counted",
            "resolver: a_pointer_that_is_no_exported_function_is_routed_by_name_and_counted",
            "notes: a_function_that_was_unknown_before_cuinit_is_named_once_the_page_is_there",
        ),
        "a driver that calls back while it starts": (
            "interposer_forward: a_driver_that_calls_the_interposer_while_it_initialises_reaches_itself",
        ),
        "NVIDIA's own runtime, shared and static": (
            "standin_runtime: the_cuda_runtime_finds_all_it_needs_through_the_interposer_up_to_nvidias_proof",
            "standin_runtime: the_cuda_runtime_asks_the_same_with_the_interposer_as_without",
            "gpu: gpu_runtime_starts",
        ),
    },
    "loader": {
        "linked, dlopen, deep binding, a namespace, next in line, the loader's dlsym, an own walk": (
            "interposer_loader: the_mounted_interposer_meets_every_client",
            "hostile: not_one_byte_more",
        ),
        "an image's own driver first on the path": (
            "interposer_loader: the_preloaded_interposer_wins_over_a_driver_that_comes_first_on_the_path",
            "hostile: not_one_byte_more",
        ),
        "statically linked": ("interposer_loader: the_mounted_interposer_meets_a_statically_linked_program",),
        "raised rights": ("interposer_container: a_program_with_raised_rights_is_limited_too",),
        "no environment, or one of its own": (
            "interposer_container: the_preload_file_is_a_door_that_no_environment_opens",
        ),
        "the name without a version": ("interposer_loader: the_unversioned_name_is_ours_where_it_is_mounted",),
        "fork and exec": (
            "interposer_loader: a_child_of_fork_and_a_program_after_exec_are_on_their_own",
            "memory_processes: exec_ends_the_old_programs_account",
        ),
        "ordinary programs: shells, sshd, another libc, static ones": (
            "interposer_loader: ordinary_programs_run_under_preload_and_hear_nothing",
            "interposer_programs: bash_answers_as_ever_behind_the_preload_file",
            "interposer_programs: sshd_lets_a_user_in_who_then_meets_the_library",
            "interposer_programs: a_shell_of_another_libc_passes_the_preload_file_over",
            "interposer_programs: a_static_program_is_not_concerned",
        ),
        "what a start costs": (
            "interposer_loader: preloading_both_interposers_adds_little_to_a_programs_start",
            "interposer_loader: a_program_that_never_calls_cuda_opens_no_file_of_ours",
            "bench: preload_start_ms",
        ),
        "old systems": (
            "interposer_symbols: it_needs_libc_alone_and_no_symbol_newer_than_glibc_2_17",
            "interposer_loader: where_libc_has_no_dlopen_it_is_found_among_what_is_loaded",
        ),
        "other machines and compilers": (
            "interposer_machines: arguments_hooks_pages_and_routing_work_on_this_machine",
            "interposer_machines: the_librarys_own_code_holds_on_other_machines",
        ),
    },
    "memory": {
        "each way to take and to give back": (
            "memory_calls: a_context_is_charged_with_the_reserve_and_its_end_gives_it_back",
            "memory_calls: linear_memory_fills_the_limit_to_the_byte",
            "memory_calls: pitched_memory_is_charged_with_its_rows_as_they_are",
            "memory_calls: a_block_lives_and_is_charged_while_it_has_a_handle_or_a_mapping",
            "memory_model: the_account_is_what_the_card_gave_whatever_the_order_of_calls",
            "gpu: gpu_memory_over_",
        ),
        "one kind freed by the other's call": (
            "memory_pools: each_kind_of_memory_may_be_freed_by_the_other_call",
        ),
        "nothing asked for, nothing to answer into": (
            "memory_calls: a_call_that_the_driver_refuses_has_its_answer_and_leaves_no_trace",
            "memory_reporting: either_output_may_be_absent",
        ),
        "sizes that overflow": ("memory_calls: sizes_that_no_number_holds_are_refused",),
        "the limit, and one byte more": (
            "memory_calls: linear_memory_fills_the_limit_to_the_byte",
            "memory_pools: the_limit_holds_to_the_byte_for_pools",
        ),
        "managed": (
            "memory_calls: managed_memory_is_charged_in_full_as_it_can_all_be_resident",
            "memory_reporting: a_full_card_refuses_unless_the_page_allows_memory_that_can_move",
        ),
        "arrays of every format": (
            "memory_calls: arrays_are_charged_in_bytes_not_bits",
            "memory_calls: arrays_of_every_format_are_charged_as_the_card_does",
        ),
        "mip levels": ("memory_calls: mipmapped_arrays_are_charged_with_all_their_levels",),
        "pools: trim and threshold": (
            "memory_pools: a_pool_of_the_programs_own_is_charged_trimmed_and_destroyed",
            "memory_pools: an_allocation_takes_from_what_the_pool_keeps_at_the_limit_too",
            "memory_pools: a_pool_is_trimmed_before_another_allocation_is_refused",
        ),
        "blocks: retained, imported, mapped after their release": (
            "memory_calls: a_block_lives_and_is_charged_while_it_has_a_handle_or_a_mapping",
            "memory_processes: a_block_imported_from_another_process_is_charged_to_the_one_that_made_it",
        ),
        "nodes of graphs that allocate": (
            "memory_pools: a_graphs_memory_is_charged_when_it_is_launched_and_kept_until_it_is_trimmed",
            "memory_pools: memory_allocated_in_a_capture_counts_when_the_graph_runs",
        ),
        "a reset of the primary context": (
            "memory_pools: a_reset_drops_everything_of_the_device",
            "memory_calls: a_reset_drops_what_a_runtimes_context_held_too",
        ),
        "a context that no exported function made": (
            "memory_calls: a_context_of_the_runtimes_own_way_is_charged_when_it_is_first_used",
            "memory_calls: a_context_that_is_there_counts_although_it_did_not_fit",
        ),
        "a context's end": ("memory_calls: memory_of_a_context_goes_with_it",),
        "a driver that fails": (
            "memory_model: a_driver_that_runs_out_of_memory_at_any_call_leaves_the_account_true",
            "memory_model: whatever_the_driver_fails_with_is_passed_on_and_nothing_stays_charged",
            "memory_model: what_could_not_be_freed_stays_charged",
        ),
    },
    "processes": {
        "many at the limit, watched": (
            "memory_processes: processes_killed_at_any_instant_never_hold_more_than_the_limit",
            "bench: memory_bytes_over",
        ),
        "killed at any instant, the account true within a second": (
            "memory_processes: after_kills_the_account_is_true_again_soon_after_it_is_asked",
            "page_ledger: processes_killed_at_random_never_pass_the_limit_and_leave_a_true_ledger",
            "bench: memory_bytes_over",
        ),
        "fork": (
            "memory_processes: a_child_of_fork_neither_counts_nor_harms_what_its_parent_holds",
            "memory_processes: a_child_forked_before_cuda_has_an_account_of_its_own",
        ),
        "a number used again": (
            "memory_processes: a_process_that_was_given_a_dead_ones_number_inherits_nothing_of_it",
            "page_attach: a_reused_pid_is_another_process",
        ),
        "PID namespaces": (
            "memory_processes: a_process_in_a_pid_namespace_of_its_own_is_counted_and_reaped",
            "interposer_container: processes_of_two_pid_namespaces_tell_the_dead_from_the_living",
        ),
        "every slot taken": ("memory_processes: a_process_beyond_the_last_slot_is_refused_and_named",),
    },
    "reporting": {
        "the numbers add up": (
            "memory_reporting: nvml_shows_the_share_and_its_numbers_add_up",
            "memory_reporting: cuda_shows_the_share_and_what_is_left_of_it",
        ),
        "a caller like nvidia-smi, and pynvml": (
            "memory_reporting: a_program_like_nvidia_smi_sees_the_share_as_the_card",
            "memory_reporting: pynvml_sees_the_share_as_the_card",
        ),
        "process lists": (
            "memory_reporting: process_lists_name_the_containers_processes_by_its_own_ids",
            "memory_reporting: a_process_that_is_gone_is_not_listed_nor_counted",
        ),
        "limits that change under a program": (
            "memory_reporting: a_limit_below_use_refuses_what_is_new_and_shows_nothing_free",
            "page_attach: a_change_of_limits_reaches_a_running_process",
        ),
        "several cards": (
            "memory_reporting: cards_are_known_by_uuid_whatever_order_the_process_sees_them_in",
            "memory_reporting: nvml_lists_the_containers_cards_and_no_others",
        ),
    },
    "cores": {
        "six workloads at four limits": (
            "core_share: the_share_is_kept_at_every_limit",
            "bench: share_mean_error_points",
            "gpu: gpu_share_",
        ),
        "several threads": (
            "core_share: the_share_is_kept_at_every_limit",
            "core_calls: a_hundred_threads_come_and_go",
            "threads: threads_that_launch_are_held_to_their_share",
        ),
        "several processes": ("core_share: processes_of_a_container_share_its_limit",),
        "several containers": (
            "core_tenants: containers_divide_a_card_by_their_limits",
            "bench: split_error_points",
            "gpu: gpu_split_",
        ),
        "several cards": ("core_calls: each_card_has_its_own_limit_whatever_its_number",),
        "capture": (
            "core_calls: nothing_is_held_back_or_recorded_in_a_capture",
            "core_calls: a_capture_on_one_thread_survives_measured_work_on_others",
        ),
        "every way to launch, graphs too": ("core_calls: every_launch_is_charged_and_held_to_the_limit",),
        "bursts": ("core_share: the_share_is_kept_at_every_limit", "token_bucket: the_arithmetic_holds_on"),
        "limits that change under a program": (
            "core_share: a_change_of_the_limit_is_seen_at_once",
            "core_share: a_waiting_process_sees_a_raised_limit",
            "bench: limit_change_ms",
        ),
        "no manager": (
            "core_share: without_a_host_the_last_limits_stay_in_force",
            "core_tenants: a_dead_host_leaves_no_container_without_a_limit",
        ),
        "a clock that jumps": ("token_bucket: the_arithmetic_holds_on_a_virtual_clock",),
    },
    "robustness": {
        "a limits page that is missing, truncated, of another version, garbage": (
            "page_attach: a_broken_limits_page_refuses_cuda_and_says_which_file",
            "interposer_forward: cuinit_is_refused_when_a_page_is_missing",
        ),
        "a usage page like that, or one that may not be written": (
            "page_attach: a_broken_usage_page_follows_the_policy",
            "page_attach: a_usage_page_that_may_not_be_written_refuses_cuda",
            "page_attach: a_limits_page_that_may_not_be_read_refuses_cuda",
        ),
        "garbage in the usage page": (
            "page_attach: absurd_numbers_in_the_page_harm_nobody",
            "core_share: garbage_in_the_credit_words_stalls_nobody",
            "hostile: not_one_byte_more",
        ),
        "a limits page written half": (
            "page_attach: a_writer_killed_at_any_byte_shows_a_running_process_old_or_new",
            "page_attach: when_both_copies_are_destroyed_the_last_limits_stay_in_force",
            "page_attach: c_and_python_judge_the_same_hostile_headers_alike",
        ),
        "no driver, a broken one, one that lacks a function": (
            "interposer_forward: without_a_driver_cuinit_says_which_file_is_missing",
            "interposer_forward: a_broken_driver_file_is_no_driver",
            "interposer_forward: a_driver_that_lacks_a_hooked_function_says_so_as_without_the_library",
        ),
        "under sanitizers": (
            "memory_model: the_account_is_what_the_card_gave_whatever_the_order_of_calls",
            "memory_table: nothing_is_lost_or_found_twice_whatever_threads_and_forks_do",
            "threads: four_threads_take_and_give_back_memory_in_every_way",
        ),
    },
    # Each way of a program past its limit that is known: one that the library answers, or that the documents list with
    # what the host does instead.
    "evasions": {
        "the environment, another user, a login": (
            "hostile: not_one_byte_more",
            "interposer_programs: sshd_lets_a_user_in_who_then_meets_the_library",
        ),
        "raised rights": ("hostile: not_one_byte_more",),
        "another libc, static programs": (
            "interposer_programs: a_shell_of_another_libc_passes_the_preload_file_over",
            "interposer_loader: the_mounted_interposer_meets_a_statically_linked_program",
        ),
        "a driver of the image's own, found by name": ("hostile: not_one_byte_more",),
        "the real file, or a copy, by its path": (
            "hostile: a_driver_by_its_path_goes_past_the_library_and_leaves_no_slot_for_the_host_to_find",
            "security: the real driver by its path",
            "security: a private copy of the driver",
        ),
        "chroot, nested containers, namespaces": (
            "security: in a `chroot` of the tenant's own",
            "security: a nested container or user namespace",
        ),
        "raw calls of the kernel's driver": ("security: raw calls to `/dev/nvidia*`",),
        "writing the limits, the library, the preload file": (
            "hostile: not_one_byte_more",
            "interposer_container: the_limits_cannot_be_written_from_inside",
        ),
        "writing the usage page": (
            "hostile: not_one_byte_more",
            "security: writing less into the account",
            "security: a forged slot",
            "security: destroying the usage page",
        ),
        "the library's own memory": ("security: patching the library in memory",),
        "other libraries of the driver, memory without a call": ("security: memory moved to the card without a call",),
    },
    "performance": {
        "nanoseconds of a call, milliseconds of a start": (
            "bench: forward_ns",
            "bench: launch_unlimited_ns",
            "bench: launch_limited_ns",
            "bench: launch_8proc_p99_ns",
            "bench: memory_call_ns",
            "bench: preload_start_ms",
            "bench: cuinit_ms",
            "bench: cuinit_64_max_ms",
        ),
    },
}  # fmt: skip
GROUPS = [
    pytest.param(tests, id=f"{area}, {group}")
    for area, groups in MATRIX.items()
    for group, tests in groups.items()
]


@functools.cache
def found_in(file: str) -> tuple[str, ...]:
    """The tests of a file, those left out that do not check anything."""
    tree = ast.parse((ROOT / f"tests/native/test_{file}.py").read_text(encoding="utf-8"))
    return tuple(
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(inner, ast.Assert | ast.Call) for inner in ast.walk(node))
    )


@functools.cache
def rows_of(place: str) -> str:
    """All that a bench's files say, in which the names of its rows stand."""
    return "\n".join(file.read_text(encoding="utf-8") for file in sorted((ROOT / place).glob("*.py")))


@pytest.mark.parametrize("tests", GROUPS)
def test_each_group_has_a_test_that_exists(tests: tuple[str, ...]) -> None:
    assert tests
    for test in tests:
        file, _, name = test.partition(": ")
        if file == "security":
            assert name in (ROOT / "docs/security.md").read_text(encoding="utf-8"), test
        elif file in ("bench", "gpu"):
            assert f'"{name}' in rows_of("bench" if file == "bench" else "tests/gpu"), test
        else:
            assert any(found.startswith(f"test_{name}") for found in found_in(file)), test


def test_the_columns_are_all_there() -> None:
    """Releases, doors and machines that the tests above run through."""
    releases = ("12.2", "12.4", "12.9", "13.0", "13.5")
    assert tuple(fake_driver.RELEASES) == tuple(standin.VERSIONS) == releases
    assert set(DOORS) == {"mount", "preload"}
    assert "mount+preload" in MOUNT
    assert "mount+preload" in PRELOAD
    machines = (ROOT / "tests/native/test_interposer_machines.py").read_text(encoding="utf-8")
    assert 'params=["own", "clang", "aarch64"]' in machines
