"""Command lines without their secrets, and with everything else."""

from __future__ import annotations

import pytest

from hostenv.agent.probe.masking import masked, masked_text


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--api-key", "abc"], ["--api-key", "***"]),
        (["--api-key=abc"], ["--api-key=***"]),
        (["--admin_api_key", "abc"], ["--admin_api_key", "***"]),
        (["--hf-token", "abc", "--port", "1"], ["--hf-token", "***", "--port", "1"]),
        (["HF_TOKEN=abc", "python"], ["HF_TOKEN=***", "python"]),
        (["--ssl-keyfile-password", "abc"], ["--ssl-keyfile-password", "***"]),
        (["sh", "-c", "HF_TOKEN=abc python x.py"], ["sh", "-c", "HF_TOKEN=***"]),
        (["sh", "-c", "cd x; HF_TOKEN=abc y"], ["sh", "-c", "cd x; HF_TOKEN=*** y"]),
        (["sh", "-c", "x --hf-token 'a b' --port 1"], ["sh", "-c", "x --hf-token *** --port 1"]),
        (["sglang::router --api-key abc"], ["sglang::router --api-key ***"]),  # a title of its own
        (["https://user:pass@host/x"], ["https://***@host/x"]),
        (["hf_abcdefghijklmnop"], ["***"]),
        (["-H", "Authorization: Bearer abcdefghij"], ["-H", "Authorization: *** ***"]),
        (['{"api_key": "abc", "port": 1}'], ['{"api_key": ***, "port": 1}']),
        (["--use-auth-token", "--trust-remote-code"], ["--use-auth-token", "--trust-remote-code"]),
    ],
)
def test_secrets_are_masked(given: list[str], told: list[str]) -> None:
    assert masked(given) == told


@pytest.mark.parametrize(
    "word",
    [
        "--max-total-tokens=1000",
        "--tokenizer-path=/models/x",
        "--skip-tokenizer-init",
        "--ssl-keyfile=/etc/ssl/key.pem",
        "/root/venv/bin/python",
        "sglang::scheduler_TP0",
        "--keyboard=us",
    ],
)
def test_what_is_no_secret_stays(word: str) -> None:
    assert masked([word, "next"]) == [word, "next"]


def test_no_part_of_a_secret_is_left_by_shortening() -> None:
    told = masked(["x" * 395 + " token=SECRETSECRETSECRET"])
    assert "SECRET" not in told[0]


def test_huge_command_lines_are_shortened() -> None:
    told = masked(["a" * 100_000, *["b"] * 5000])
    assert sum(map(len, told)) < 1000
    assert told[-1] == "… 4901 more"


def test_free_text() -> None:
    assert masked_text("serve with password=hunter2 now") == "serve with password=*** now"
