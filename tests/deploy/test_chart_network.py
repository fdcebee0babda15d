"""Who may reach which port, by the chart's network policies."""

from __future__ import annotations

from tests.deploy.chart import the


def test_metrics_are_closed_to_strangers_and_admission_to_all_but_its_webhook() -> None:
    agent = the("defaults", "NetworkPolicy", "gpu-manager")["spec"]
    (rule,) = agent["ingress"]
    assert rule["from"]
    assert all(rule["from"])  # an empty peer would be everyone
    assert [p["port"] for p in rule["ports"]] == ["metrics"]
    (rule,) = the("defaults", "NetworkPolicy", "gpu-quota-admission")["spec"]["ingress"]
    assert rule == {"ports": [{"protocol": "TCP", "port": "webhook"}]}
    rules = the("cluster", "NetworkPolicy", "gpu-quota-admission")["spec"]["ingress"]
    assert [[p["port"] for p in rule["ports"]] for rule in rules] == [["webhook"], ["extender"]]


def test_nobody_reaches_the_evictor_which_opens_no_port() -> None:
    assert the("defaults", "NetworkPolicy", "gpu-manager-evictor")["spec"]["policyTypes"] == ["Ingress"]
    assert "ingress" not in the("defaults", "NetworkPolicy", "gpu-manager-evictor")["spec"]
    (only,) = the("defaults", "Deployment", "gpu-manager-evictor")["spec"]["template"]["spec"]["containers"]
    assert "ports" not in only


def test_the_webhooks_port_is_open_to_named_peers_those_of_metrics_and_our_own_where_the_chart_is_told() -> (
    None
):
    (rule,) = the("claims", "NetworkPolicy", "gpu-quota-admission")["spec"]["ingress"]
    assert [p["port"] for p in rule["ports"]] == ["webhook"]
    named, monitoring, *own = rule["from"]
    assert named == {"ipBlock": {"cidr": "10.0.0.0/29"}}
    assert monitoring == the("claims", "NetworkPolicy", "gpu-manager")["spec"]["ingress"][0]["from"][0]
    components = [peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for peer in own]
    assert components == ["admission", "test"]


def test_api_servers_reach_the_agents_pages_from_where_the_administrator_says_they_are() -> None:
    def sources(name: str) -> list[object]:
        (rule,) = the(name, "NetworkPolicy", "gpu-manager")["spec"]["ingress"]
        return list(rule["from"])

    block = {"ipBlock": {"cidr": "10.0.0.0/29"}}
    assert block in sources("bare-network")
    assert not [peer for peer in sources("defaults") if "ipBlock" in peer]  # no cluster to ask here
