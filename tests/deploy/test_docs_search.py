"""The site's search finds the page that answers an everyday question, as the browser runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import pytest

from tests.fakes.browser import NEEDS_A_BROWSER, browsing

pytestmark = NEEDS_A_BROWSER

ROOT: Final = Path(__file__).parents[2]
QUERIES: Final = ROOT / "tests/data/docs/queries.tsv"
"""What people type, and the pages that answer it, with ``|`` between."""
SHOWN: Final = 4
FOUND: Final = 69
"""Number of the 71 queries, at least, whose page is among the first SHOWN results."""

SEARCH: Final = """
(async () => {
  const index = await (await fetch("/search/search_index.json")).json();
  const script = JSON.parse(document.querySelector("#__config").textContent).search;
  const worker = new Worker(new URL(script, location));
  const ask = (message) => new Promise((answer) => {
    worker.onmessage = ({data}) => answer(data.data);
    worker.postMessage(message);
  });
  await ask({type: 0, data: {...index, options: {suggest: false}}});
  const pages = {};
  for (const query of QUERIES)
    pages[query] = (await ask({type: 2, data: query})).items.map(([first]) => first.location.split(/[.#]/)[0]);
  return pages;
})()
"""


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, and logs nothing."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the site, built from the tree."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_everyday_questions_find_their_page_among_the_first_four(site: str, tmp_path: Path) -> None:
    wanted = dict(line.split("\t") for line in QUERIES.read_text(encoding="utf-8").splitlines())
    for page in {page for pages in wanted.values() for page in pages.split("|")}:
        assert (ROOT / f"docs/{page}.md").exists(), page
    with browsing(tmp_path) as tab:
        tab.open(f"{site}/index.html", 'document.querySelector("#__config")')
        found = tab.look(SEARCH.replace("QUERIES", json.dumps(list(wanted))))
    missed = {q: found[q][:SHOWN] for q in wanted if not {*wanted[q].split("|")} & {*found[q][:SHOWN]}}
    assert len(wanted) - len(missed) >= FOUND, missed
