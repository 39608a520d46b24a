"""Secrets never reach a record: tokens, keys and passwords are replaced where text, mappings and argv enter the runner.

What counts: a *name* that says secret (HF_TOKEN, api_key, ssl_keyfile_password ...), or a *value* whose shape says so (sk-..., hf_...,
an Authorization header, credentials inside a URL). Names of ordinary things stay (max_total_tokens, tokenizer_path, eos_token_id).
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

HIDDEN = "***"

# The last word of a name decides, so `tokens`, `token_id` and `tokenizer_path` stay.
_SECRET_NAME = re.compile(
    r"""(?ix) ^ [\w.\-]*? (?:
        api[_-]?keys? | access[_-]?key(?:[_-]?id)? | secret[_-]?access[_-]?key | secret[_-]?keys? | private[_-]?key | account[_-]?key
      | (?:^|[_\-.]) (?: token | auth[_-]?key | encryption[_-]?key | signing[_-]?key | license[_-]?key | master[_-]?key | hmac[_-]?key )
      | (?:^|[_\-.]|(?<=[a-z])) (?: secret | secrets | password | passwd | passphrase | pwd | credential | credentials )
      | authorization | proxy-authorization | bearer | cookie | set-cookie | x-auth-token | connection[_-]?string | dsn | netrc | .*[_\-.]pat
    ) $"""
)
# Names that end like a secret and are none: special tokens, chat-template words, sampling words.
_ORDINARY_NAME = re.compile(
    r"""(?ix) ^ (?: .*[_\-.] )? (?: (?: bos | eos | pad | unk | sep | cls | mask | image | video | audio | im_start | im_end | think | think_start
      | think_end | start | end | stop | special | added | first | next | last | per | a | each | every | output | input | prompt | total
      | max | min | num | new | draft | accepted | vocab | single | bytes_per | latency_per | time_per ) [_\-] (?: token | pat ) ) $ | ^ (?: token | pwd | oldpwd | pat ) $"""
)
_VALUE = r"(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s,;)}\]&\"']+)"
_HINT = r"[\w.\-]*(?:key|token|secret|passw|passphrase|pwd|credential|authorization|bearer|cookie|dsn|netrc|connection|pat)[\w.\-]*"
_ASSIGNED = re.compile(rf"(?i)(?<![\w.\-])(?P<quote>[\"']?)(?P<name>-{{0,2}}{_HINT})(?P=quote)(?P<sep>\s*[=:]\s*)(?P<value>{_VALUE})")
_OPTION = re.compile(rf"(?i)(?<![\w\-])(?P<quote>[\"']?)(?P<name>--?{_HINT})(?P=quote)(?P<sep>,?\s+)(?P<value>{_VALUE})")
_SHAPES = (
    re.compile(r"(?i)(?P<keep>\bauthorization[\"']?\s*[:=]\s*[\"']?(?:(?:bearer|basic|token|digest)\s+)?)(?P<secret>[^\s\"',;]+)"),
    re.compile(r"(?i)(?P<keep>\b(?:bearer)\s+)(?P<secret>[A-Za-z0-9._~+/=\-]{8,})"),
    re.compile(r"(?P<keep>[a-z][a-z0-9+.\-]*://[^\s/@:\"']*:)(?P<secret>[^\s/@\"']+)(?=@)", re.IGNORECASE),
    re.compile(r"(?P<keep>[a-z][a-z0-9+.\-]*://)(?P<secret>[A-Za-z0-9_\-]{16,})(?=@)", re.IGNORECASE),
    re.compile(
        r"(?P<keep>[?&](?:sig|signature|X-Amz-Signature|X-Amz-Credential|X-Amz-Security-Token|token|key|api_key|access_token)=)(?P<secret>[^&\s\"']+)",
        re.IGNORECASE,
    ),
    re.compile(r"(?P<keep>)(?P<secret>\bsk-[A-Za-z0-9_\-]{12,})"),
    re.compile(r"(?P<keep>)(?P<secret>\bhf_[A-Za-z0-9]{12,})"),
    re.compile(
        r"(?P<keep>)(?P<secret>\b(?:ghp|gho|ghu|ghs|ghr)_[A-Za-z0-9]{16,}|\bgithub_pat_[A-Za-z0-9_]{16,}|\bglpat-[A-Za-z0-9_\-]{16,})"
    ),
    re.compile(r"(?P<keep>)(?P<secret>\b(?:AKIA|ASIA)[A-Z0-9]{16}\b)"),
    re.compile(r"(?P<keep>)(?P<secret>\bxox[abprs]-[A-Za-z0-9\-]{10,})"),
    re.compile(r"(?P<keep>)(?P<secret>\bnvapi-[A-Za-z0-9_\-]{16,})"),
    re.compile(r"(?P<keep>)(?P<secret>\bAIza[A-Za-z0-9_\-]{30,})"),
    re.compile(r"(?P<keep>)(?P<secret>\beyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]*)"),
    re.compile(r"(?P<keep>)(?P<secret>-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z))", re.DOTALL),
)
# A count of tokens, not a token: secrets are not short plain numbers.
_NUMBER = re.compile(r"[-+]?\d{0,12}(?:\.\d*)?(?:e[-+]?\d+)?")
_EMPTY = frozenset({"", "none", "null", "false", "true", "n/a", "unset", "''", '""', HIDDEN})


def is_secret_name(name: str) -> bool:
    """True when a variable, option or field of this name holds a secret."""
    bare = name.strip().lstrip("-")
    return bool(_SECRET_NAME.match(bare)) and not _ORDINARY_NAME.match(bare)


def scrub_text(text: str) -> str:
    """`text` with every secret replaced by `***`; line count and everything else stay as they are."""
    text = _ASSIGNED.sub(_hide_named, text)
    text = _OPTION.sub(_hide_named, text)
    for shape in _SHAPES:
        text = shape.sub(_hide_shaped, text)
    return text


def scrub_mapping(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of an environment, a body of /server_info or any JSON object, without its secrets, at every depth."""
    return {key: _scrub_value(str(key), value) for key, value in mapping.items()}


def scrub_argv(argv: Iterable[str]) -> tuple[str, ...]:
    """Words of a command line without their secrets: `--api-key X`, `--api-key=X`, `NAME=X` and secret shapes anywhere."""
    scrubbed: list[str] = []
    hide_next = False
    for word in argv:
        word = str(word)
        if hide_next and not word.startswith("--"):
            scrubbed.append(HIDDEN)
            hide_next = False
            continue
        hide_next = False
        name, equals, value = word.partition("=")
        if equals and is_secret_name(name):
            scrubbed.append(f"{name}={HIDDEN if value.lower() not in _EMPTY else value}")
            continue
        hide_next = not equals and word.startswith("-") and is_secret_name(word)
        scrubbed.append(scrub_text(word))
    return tuple(scrubbed)


def _scrub_value(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return scrub_mapping(value)
    if is_secret_name(name) and isinstance(value, (str, bytes, list, tuple)):
        return value if isinstance(value, str) and value.lower() in _EMPTY else HIDDEN if value else value
    if isinstance(value, str):
        return scrub_text(value)
    if isinstance(value, (list, tuple)):
        if all(isinstance(item, str) for item in value):
            return list(scrub_argv(value))
        return [_scrub_value("", item) for item in value]
    return value


def _hide_named(match: re.Match[str]) -> str:
    name, sep, value = match["name"], match["sep"], match["value"]
    bare = value.strip("\"'").lower()
    if not is_secret_name(name) or bare in _EMPTY or bare.startswith(("bearer", "basic")):
        return match[0]
    if (_NUMBER.fullmatch(bare) and name.lower().endswith("token")) or (value.startswith("-") and "=" not in sep):
        return match[0]
    quote = value[0] if value[0] in "\"'" else ""
    return f"{match['quote']}{name}{match['quote']}{sep}{quote}{HIDDEN}{quote}"


def _hide_shaped(match: re.Match[str]) -> str:
    secret = match["secret"]
    if secret == HIDDEN:
        return match[0]
    return match["keep"] + HIDDEN + "\n" * secret.count("\n")
