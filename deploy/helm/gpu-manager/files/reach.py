"""`helm test`: is every agent ready, does admission answer, and does it judge as it should?

Arguments: the agents' Service; admission's, where it is installed; the extender's, where the cluster's own
scheduler calls it (beside admission's own scheduler it listens on loopback alone: the second part of the test
goes through it). Prints a line each; 1 if one fails.
"""

import json
import socket
import ssl
import sys
import urllib.error
import urllib.request

SECONDS = 10
# This pod reads no Secrets; who must trust the certificate is the API server.
UNCHECKED = ssl._create_unverified_context()  # noqa: SLF001  # as said
ILLEGAL = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {
        "uid": "helm-test",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": "default",
        "operation": "CREATE",
        "userInfo": {"username": "helm-test"},
        "object": {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "helm-test", "namespace": "default"},
            "spec": {
                "containers": [
                    {
                        "name": "c",
                        "image": "none",
                        "resources": {"limits": {"tencent.com/vcuda-core": "150"}},
                    }
                ]
            },
        },
    },
}


def ask(url: str, body: object = None) -> tuple[int, str]:
    """Status and text of one answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=SECONDS, context=UNCHECKED) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def told(name: str, text: str, *, good: bool) -> bool:
    """Print the line; returns ``good``."""
    print(f"{'ok  ' if good else 'FAIL'} {name}: {' '.join(text.split())[:400]}")
    return good


def agents(service: str) -> bool:
    """Every agent behind the headless Service, ready or not."""
    try:
        found = sorted({info[4][0] for info in socket.getaddrinfo(service, 5678, type=socket.SOCK_STREAM)})
    except OSError as error:
        return told("agents", f"none runs ({error}): label a node nvidia-device-enable=enable", good=False)
    results = []
    for address in found:
        host = f"[{address}]" if ":" in address else address
        status, text = ask(f"http://{host}:5678/readyz")
        results.append(told(f"agent {address}", text, good=status == 200))
    return all(results)


def admission(service: str) -> bool:
    """The webhook refuses what the rules forbid."""
    status, text = ask(f"https://{service}/readyz")
    ready = told("admission", text, good=status == 200)
    status, text = ask(f"https://{service}/validate", ILLEGAL)
    try:
        response = json.loads(text)["response"]
        message = (response.get("status") or {}).get("message", "")
        good = not response["allowed"] and "multiple of 100" in message
    except (ValueError, KeyError, TypeError):
        good, message = False, text
    return told("a request for 150 cores is refused", message, good=good) and ready


def extender(service: str) -> bool:
    """The replica that leads is there for the cluster's scheduler."""
    status, text = ask(f"https://{service}:3456/version")
    return told("extender", text, good=status == 200)


if __name__ == "__main__":
    checks = [agents(sys.argv[1]), *map(admission, sys.argv[2:3]), *map(extender, sys.argv[3:4])]
    sys.exit(not all(checks))
