"""How the fetching stages reach an index: the build's secrets, as settings of requests and uv."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import requests
from requests.adapters import HTTPAdapter

SECRETS = Path("/run/secrets")


def requests_session(connections: int) -> requests.Session:
    """Return an HTTP session that trusts the build's CA bundle and sends the netrc's credentials."""
    if (SECRETS / "netrc").is_file():
        os.environ["NETRC"] = str(SECRETS / "netrc")
    session = requests.Session()
    if (SECRETS / "ca").is_file():
        session.verify = str(SECRETS / "ca")
    session.mount("https://", HTTPAdapter(pool_maxsize=connections))
    session.mount("http://", HTTPAdapter(pool_maxsize=connections))
    return session


def index_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which uv reaches the index with the build's secrets."""
    env = dict(environ)
    if (SECRETS / "ca").is_file():
        env["SSL_CERT_FILE"] = str(SECRETS / "ca")
    if (SECRETS / "netrc").is_file():
        env["NETRC"] = str(SECRETS / "netrc")
    if (SECRETS / "index").is_file():
        env["UV_DEFAULT_INDEX"] = (SECRETS / "index").read_text().strip()
    return env
