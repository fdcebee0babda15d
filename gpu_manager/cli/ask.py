"""``gpu-manager status``, ``graph`` and ``usage``: what the running agent of this node says."""

from __future__ import annotations

import json
from typing import Annotated, Any

from gpu_manager.cli.output import TABLE, Printing, coloured, columns
from gpu_manager.domain.cluster.node_json import held_words, mig_words
from gpu_manager.domain.contract import DRA_DRIVER, HTTP_PORT
from gpu_manager.domain.errors import NodeUnready, RequestInvalid, printable
from gpu_manager.domain.resources import format_bytes
from gpu_manager.runtime.arguments import Option

_LARGEST_BYTES = 16 << 20
_SECONDS = 10.0


Url = Annotated[str, Option(help="The agent's address.")]
Token = Annotated[
    str, Option("--token", envvar="GPU_MANAGER_TOKEN", help="Bearer token, where the agent asks for one.")
]
DEFAULT = f"http://127.0.0.1:{HTTP_PORT}"


def graph(url: Url = DEFAULT, printing: Printing = TABLE, token: Token = "") -> None:
    """Show the cards and who holds what of them.

    Examples:
      gpu-manager graph
    """
    if not printing.for_program:
        print(get(url, "/graph", "text/plain", token).rstrip())
    else:
        printing.emit(_read(url, "/graph", token))


def usage(url: Url = DEFAULT, printing: Printing = TABLE, token: Token = "") -> None:
    """Show what each container asked for and uses.

    Examples:
      gpu-manager usage -o json
    """
    data = _read(url, "/usage", token)
    if printing.for_program:
        printing.emit(data)
        return
    if not data.get("usage"):
        print("no container of this node holds a share of a card")
    for pod in data.get("usage", {}).values():
        for container, spec in pod.get("spec", {}).items():
            devices = pod.get("stat", {}).get(container, {}).get("dev", [])
            used = "; ".join(_device(device) for device in devices) or "not known"
            asked = f"{spec['gpu']:g} cards, {spec['mem']:g} MiB"
            name = f"{pod['project']}/{pod['pod']} {container}" if pod["pod"] else "hidden"
            print(printable(f"{name}: asked {asked}; used {used}"))


def status(url: Url = DEFAULT, printing: Printing = TABLE, token: Token = "") -> int:
    """Say whether the agent can serve pods, and how its cards stand.

    Examples:
      gpu-manager status
      gpu-manager status --url http://10.0.0.7:5678
    """
    ready = _object(url, "/readyz", get(url, "/readyz", "application/json", token, ok=(200, 503)))
    why = ready.pop("why", "")
    data = {
        "version": _read(url, "/version", token).get("version"),
        "ready": ready,
        "why": why,
        **_read(url, "/graph", token),
    }
    if printing.for_program:
        printing.emit(data)
    else:
        checks = ", ".join(f"{name}: {'yes' if holds else 'NO'}" for name, holds in ready.items())
        print(printable(f"gpu-manager {data['version']} on {data['node']}; {checks}"))
        if why:
            print(printable(f"  {why}"))
        _show_cards(data["cards"])
    return 0 if all(ready.values()) else 1


def _show_cards(cards: list[dict[str, Any]]) -> None:
    """A row a card, and one more for each further holder; cards that take no share are red on a terminal."""
    rows, colours = [], [""]
    for card in cards:
        first, *others = [_holder(h) for h in card["holders"]] or ["idle"]
        if card["mig"] and not card["holders"]:
            first = mig_words(card, cards)
        rows.append((str(card["index"]), card["model"], _free(card), _state(card), first))
        rows += [("", "", "", "", holder) for holder in others]
        colours += ["red" if _state(card) not in ("open", held_words(DRA_DRIVER)) else ""] * (1 + len(others))
    table = columns(("card", "model", "free", "state", "who holds it"), rows)
    for line, colour in zip(table.splitlines(), colours, strict=True):
        print(coloured(line, colour) if colour else line)


def _state(card: dict[str, Any]) -> str:
    if card["mig"]:
        return "MIG mode"
    if not card["healthy"]:
        return f"unhealthy: {card['reason']}"
    if card["cordoned"]:
        return "cordoned"
    return held_words(card["held"]) if card.get("held") else "open"


def _free(card: dict[str, Any]) -> str:
    if card["mig"]:
        return "no share"
    if not card.get("open", True) and _state(card) != held_words(DRA_DRIVER):
        return "0 cores, 0 B"
    return f"{card['cores_free']} cores, {format_bytes(card['memory_free'])}"


def _holder(holder: dict[str, Any]) -> str:
    if holder.get("hidden"):
        return f"hidden {holder['cores']}"
    planned = " (planned)" if holder["planned"] else " (ended)" if holder.get("ended") else ""
    name = f"{holder['namespace']}/{holder['pod']} {holder['container']}"
    return f"{name} looks at it" if holder.get("admin") else f"{name} {holder['cores']}{planned}"


def _device(device: dict[str, Any]) -> str:
    core = f"{device['gpu']:.0f} %" if "gpu" in device else "? %"
    memory = f"{device['mem']:.0f} MiB" if "mem" in device else "? MiB"
    return f"{core} and {memory} of card {device.get('card_idx', device.get('uuid', '?'))}"


def _read(url: str, path: str, token: str) -> dict[str, Any]:
    return _object(url, path, get(url, path, "application/json", token))


def _object(url: str, path: str, text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NodeUnready(
            f"{url}{path} answered with something that is not JSON: is that the agent?"
        ) from error
    if not isinstance(data, dict):
        raise NodeUnready(f"{url}{path} answered with something else: is that the agent?")
    return data


def _own_token(url: str) -> str:
    """The token of this pod's service account, for its own agent alone: so ``kubectl exec`` shows names."""
    from gpu_manager.adapters.kube.kubeconfig import SERVICE_ACCOUNT  # noqa: PLC0415  # as below

    if url != DEFAULT:
        return ""
    try:
        return (SERVICE_ACCOUNT / "token").read_text("utf-8").strip()
    except OSError:
        return ""


def get(url: str, path: str, accept: str, token: str, ok: tuple[int, ...] = (200,)) -> str:
    """The text of one of the agent's pages. Raises NodeUnready: no answer, or a refusal."""
    from gpu_manager.adapters.http import HttpClient, HttpLimits, NoAnswer  # noqa: PLC0415  # --help must not wait

    try:
        client = HttpClient(url, limits=HttpLimits(_SECONDS, _SECONDS, _LARGEST_BYTES))
    except RequestInvalid as error:
        raise RequestInvalid(f"--url is {error}, such as {DEFAULT}") from error
    token = token or _own_token(url)
    headers = {"Accept": accept, **({"Authorization": f"Bearer {token}"} if token else {})}
    try:
        answer = client.ask("GET", path, headers=headers)
    except NoAnswer as error:
        raise NodeUnready(
            f"no agent answers at {url} ({error}): start it, or name its address with --url"
        ) from error
    finally:
        client.close()
    if answer.status not in ok:
        cure = "give --token" if answer.status == 401 else "is that the agent?"
        raise NodeUnready(f"the agent at {url} refused {path}: {answer.status}; {cure}")
    return answer.body.decode("utf-8", "replace")
