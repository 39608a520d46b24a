"""Control requests to a server that speaks SGLang's HTTP. Load is not driven from here. Proxies of the environment are ignored."""

from typing import Any

import requests

from runner.records.secrets import scrub_mapping


class Gone(Exception):
    """The server did not answer."""


class ServerClient:
    """Health, information, metrics, cache and abort of one server. Not for several threads at once."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._session = requests.Session()
        # A proxy in the environment would answer in the server's stead (a 503 page during warm-up was seen).
        self._session.trust_env = False

    def close(self) -> None:
        self._session.close()

    def request(self, method: str, path: str, timeout: float, json: Any = None) -> requests.Response:
        """Raises Gone when there is no answer within `timeout` seconds."""
        try:
            return self._session.request(method, self.url + path, timeout=(min(timeout, 3.0), timeout), json=json, allow_redirects=False)
        except (requests.RequestException, OSError) as failed:
            raise Gone(f"{self.url}{path}: {failed}") from None

    def healthy(self, timeout: float = 25.0) -> bool:
        """True when /health answers 200. On the real engine that generates a token unless told otherwise: ask seldom."""
        try:
            return self.request("GET", "/health", timeout).status_code == 200
        except Gone:
            return False

    def info(self, timeout: float = 30.0) -> dict[str, Any]:
        """The body of /server_info (/get_server_info where that is absent), secrets removed. Raises Gone."""
        body = self._first(("/server_info", "/get_server_info"), timeout)
        return scrub_mapping(body)

    def model_info(self, timeout: float = 10.0) -> dict[str, Any]:
        """The body of /model_info. Raises Gone."""
        return scrub_mapping(self._first(("/model_info", "/get_model_info"), timeout))

    def _first(self, paths: tuple[str, ...], timeout: float) -> dict[str, Any]:
        answer = None
        for path in paths:
            answer = self.request("GET", path, timeout)
            if answer.status_code == 200:
                try:
                    body = answer.json()
                except ValueError:
                    raise Gone(f"{self.url}{path} answered no JSON") from None
                if isinstance(body, dict):
                    return body
            elif answer.status_code != 404:
                break
        status = "nothing" if answer is None else answer.status_code
        raise Gone(f"{self.url}{paths[0]} answered {status}")

    def metrics(self, timeout: float = 10.0) -> str:
        """The text of /metrics, or '' where the engine has none. Raises Gone."""
        answer = self.request("GET", "/metrics", timeout)
        if answer.status_code in (307, 308):  # a mounted application redirects to the path with a slash
            answer = self.request("GET", "/metrics/", timeout)
        return answer.text if answer.status_code == 200 else ""

    def flush(self, timeout: float = 10.0) -> bool:
        """True when /flush_cache answered 200; 400 means that requests are running. Raises Gone."""
        return self.request("POST", "/flush_cache", timeout).status_code == 200

    def abort_all(self, timeout: float = 2.0) -> bool:
        """Aborts every request; False when the server did not take it."""
        try:
            return self.request("POST", "/abort_request", timeout, json={"abort_all": True, "rid": ""}).status_code == 200
        except Gone:
            return False
