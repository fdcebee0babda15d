"""Ordinary programs in a container, all of whose processes have the library before them: nobody is disturbed.

``/etc/ld.so.preload`` holds for every program of the container, its shell and its sshd among them, whether the pages
are whole or gone. Who cannot be reached by it (another libc, static programs) passes it over.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.native.contained import PRELOAD, inside
from tests.native.fake_driver import install
from tests.native.tools import run

Fakes = dict[tuple[str, str], Path]
pytestmark = pytest.mark.usefixtures("namespaces")
PAGES = {"whole": "", "gone": "umount /etc/vcuda/limits /etc/vcuda/usage; rm -r /etc/vcuda\n"}
ANSWER = {"whole": "0", "gone": "802"}
"""Of cuInit: a page that is gone refuses CUDA, and nothing else."""


@pytest.fixture(params=PAGES)
def pages(request: pytest.FixtureRequest, root: Path, fakes: Fakes) -> str:
    """What the container's pages are, with a driver behind them."""
    install(root, fakes["cuda", "13.5"])
    return str(request.param)


def needs(program: str, package: str) -> str:
    found = shutil.which(program, path="/usr/sbin:/usr/bin:/sbin:/bin")
    if found is None:
        pytest.skip(f"{program} is not installed (Debian: apt-get install {package})")
    return found


SHELL = r"""
set -o pipefail
printf 'one\ntwo\n' | while read -r line; do echo "read $line"; done
cat <(echo substituted) - <<< "here"
( exit 3 ); echo "status $?"
sleep 5 & kill %1; wait %1 2>/dev/null; echo "killed $?"
trap 'echo trapped' USR1; kill -USR1 $$
exec env -i /bin/bash -c 'echo "clean ${LD_PRELOAD-none}"'
"""


def test_bash_answers_as_ever_behind_the_preload_file(
    native: Path,
    root: Path,
    pages: str,
    client: Path,
    tmp_path: Path,
) -> None:
    script = tmp_path / "script"
    script.write_text(SHELL)
    shell = needs("bash", "bash")
    expected = [
        "read one",
        "read two",
        "substituted",
        "here",
        "status 3",
        "killed 143",
        "trapped",
        "clean none",
    ]
    assert run(shell, script).splitlines() == expected
    said = inside(
        f"{PRELOAD}{PAGES[pages]}{shell} {script}\nHOME=/nonexistent {shell} -lc 'echo login'\n",
        native,
        root,
        client,
    )
    assert said == [*expected, "login"]


SSHD = """
mount -t tmpfs none /run
mkdir -p /run/sshd /run/keys
ssh-keygen -q -t ed25519 -N '' -f /run/keys/host
ssh-keygen -q -t ed25519 -N '' -f /run/keys/user
cat > /run/keys/config <<END
HostKey /run/keys/host
AuthorizedKeysFile /run/keys/user.pub
StrictModes no
UsePAM no
PermitRootLogin yes
PrintMotd no
END
ssh -F none -i /run/keys/user -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \\
  -o LogLevel=ERROR -o ProxyCommand='/usr/sbin/sshd -i -f /run/keys/config' root@container \\
  "echo in; $CLIENT libcuda.so.1 2>/dev/null"
"""


def test_sshd_lets_a_user_in_who_then_meets_the_library(
    native: Path,
    root: Path,
    pages: str,
    client: Path,
) -> None:
    """A login has an environment of its own; what holds it is no part of one."""
    needs("sshd", "openssh-server")
    needs("ssh", "openssh-client")
    said = inside(PRELOAD + PAGES[pages] + SSHD, native, root, client)
    assert said == ["in", ANSWER[pages]]


OTHER = r"""
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) /* a shell of few words: a command a line */
{
    char line[256];
    while (fgets(line, sizeof line, stdin)) {
        char *word[16] = {NULL};
        int count = 0, status = 0;
        for (char *at = strtok(line, " \n"); at && count < 15; at = strtok(NULL, " \n"))
            word[count++] = at;
        fflush(stdout);
        if (fork() == 0) {
            execvp(word[0], word);
            _exit(127);
        }
        wait(&status);
        printf("status %d\n", WEXITSTATUS(status));
    }
    return 0;
}
"""


@pytest.fixture
def other(tmp_path: Path) -> Path:
    source = tmp_path / "other.c"
    source.write_text(OTHER)
    return source


def test_a_shell_of_another_libc_passes_the_preload_file_over(
    native: Path,
    root: Path,
    pages: str,
    client: Path,
    other: Path,
) -> None:
    """musl, which Alpine's programs are linked with; what it starts of glibc meets the library again."""
    shell = other.with_suffix("")
    run(needs("musl-gcc", "musl-tools"), "-w", other, "-o", shell)
    assert "ld-musl" in run("readelf", "-l", shell)
    script = f"{PRELOAD}{PAGES[pages]}printf 'echo hello\\n'$CLIENT' libcuda.so.1\\n' | {shell} 2>/dev/null\n"
    assert inside(script, native, root, client) == ["hello", "status 0", ANSWER[pages], "status 0"]


def test_a_static_program_is_not_concerned(
    native: Path,
    root: Path,
    pages: str,
    client: Path,
    other: Path,
    compiler: str,
) -> None:
    program = other.with_suffix("")
    run(compiler, "-w", "-static", other, "-o", program)
    said = inside(f"{PRELOAD}{PAGES[pages]}echo 'echo hello' | {program}\n", native, root, client)
    assert said == ["hello", "status 0"]


def test_a_library_that_cannot_be_loaded_stops_no_program(
    native: Path,
    root: Path,
    pages: str,
    client: Path,
) -> None:
    """Garbage where the library should be: the loader says so and goes on; without a door there is no driver."""
    script = (
        f"{PRELOAD}{PAGES[pages]}echo garbage > /usr/local/vcuda/libvcuda.so\n"
        'sh -c "echo quiet" 2>/dev/null\n"$CLIENT" libcuda.so.1 2>/dev/null\n'
    )
    assert inside(script, native, root, client) == ["quiet", "-1"]
