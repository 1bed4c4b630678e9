"""What `esker dev --secure` makes, and that its nodes and its clients fit together."""

from __future__ import annotations

import stat

from esker.client.security import read_command_config
from esker.dev.cluster import Identity, Store, belongings, make_plan
from esker.dev.secure import LISTENER, secure
from esker.server.security import listener_security, node_outgoing_security
from esker.settings.config import load_config
from records.uuids import encode_uuid, random_uuid
from tests.ports import free_port


def test_a_secured_dev_cluster_keeps_its_certificates_and_password_between_starts(tmp_path):
    first = secure(tmp_path)
    files = {path: path.read_bytes() for path in (tmp_path / "security").iterdir()}
    assert secure(tmp_path) == first
    assert {path: path.read_bytes() for path in (tmp_path / "security").iterdir()} == files
    for name in ("client.properties", "node.pem"):
        assert stat.S_IMODE((tmp_path / "security" / name).stat().st_mode) == 0o600


def test_every_node_of_a_secured_dev_cluster_has_tls_and_the_user_of_the_client_file(tmp_path):
    made = secure(tmp_path)
    client = read_command_config(made.client_file)
    identity = Identity(cluster_id=encode_uuid(random_uuid()), store=Store())
    plan = make_plan(
        tmp_path, identity, port=free_port(), brokers=1, extra=made.settings, listener=LISTENER
    )
    broker = load_config(plan.brokers[0].properties)
    clients = listener_security(broker, LISTENER)
    assert clients.tls is not None
    assert clients.sasl.plain_users == {client.sasl.user: client.sasl.password}
    controller = load_config(plan.quorum[0].properties)
    dialled = listener_security(controller, "CONTROLLER")
    own = node_outgoing_security(broker).sasl
    assert dialled.sasl.plain_users == {own.user: own.password}
    assert stat.S_IMODE(plan.brokers[0].properties.stat().st_mode) == 0o600
    assert not belongings(tmp_path), "without its identity file nothing is esker's"
