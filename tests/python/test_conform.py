"""pypjrt's conformance checks: what passes on a real plugin passes through Mainstay."""

import json
import sys
from functools import cache

import pytest

from harness import LIBRARY, Setup, check, plugin_paths, run

# At PJRT 0.81 the Layouts extension ends before the function that this check calls; it reads beyond the
# structure and crashes. Through Mainstay, whose interface is newer, the check must not crash.
CRASHES_RAW = {2: ["layouts.executable_parameters"]}

# Looks at a function that an older plugin's table lacks; Mainstay's own table has them all.
NOT_APPLICABLE = {"abi.unknown_slot_is_clean_error"}

# Runs the harness on the plugin argv[1] without the checks argv[3:], with its report in the file argv[2].
_CONFORM = """if True:
    import sys
    from pypjrt import conform
    plugin, report, *left_out = sys.argv[1:]
    conform._CHECKS[:] = [one for one in conform._CHECKS if f"{one[0]}.{one[1]}" not in left_out]
    sys.exit(conform.main([plugin, "--json", report]))
    """


def conform(library: str, setup: Setup, folder: str, left_out: list[str]) -> dict[str, str]:
    """The result of every check, by its name."""
    report = f"{folder}/report.json"
    check(run([sys.executable, "-X", "faulthandler", "-c", _CONFORM, library, report, *left_out], setup))
    with open(report) as file:
        return {one["id"]: f"{one['result']}: {one['detail']}" for one in json.load(file)["checks"]}


@cache
def raw(plugin: int, folder: str) -> dict[str, str]:
    """The results on the real plugin."""
    return conform(plugin_paths()[plugin], Setup(), folder, CRASHES_RAW.get(plugin, []))


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("plugin", [0, 1, 2], ids=["0.115", "0.106", "0.81"])
def test_passes_what_the_real_plugin_passes(plugin: int, slices: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = str(tmp_path_factory.getbasetemp())
    expected = raw(plugin, folder)
    setup = Setup(slices=slices, devices=4, plugin=plugin_paths()[plugin])
    through = conform(str(LIBRARY), setup, folder, [])
    passed = {name for name, result in expected.items() if result.startswith("pass")} - NOT_APPLICABLE
    assert len(passed) > 40
    worse = {name: through[name] for name in sorted(passed) if not through[name].startswith("pass")}
    failed = {name: result for name, result in through.items() if result.startswith("fail")}
    assert not worse, f"worse than the real plugin: {worse}"
    assert not failed
