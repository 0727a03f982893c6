"""Addresses in object stores: what is secret in them is refused before anything prints it."""

import pytest

from raysim.cli import main
from raysim.config.addresses import parsed
from raysim.errors import InputError, one_line

KEY, SECRET = "AKIAEXAMPLE", "a+secret%2Fof=theirs"


def test_an_address_in_its_parts():
    address = parsed("--out", "s3://lab/runs/first/?region=eu-west-1&endpoint_override=http://127.0.0.1:9000")
    assert (address.scheme, address.path) == ("s3", "lab/runs/first")
    assert address.options == {"region": "eu-west-1", "endpoint_override": "http://127.0.0.1:9000"}


@pytest.mark.parametrize(
    "address",
    ["gs://lab/run", "s3://lab/someone@home/run", "abfs://box@account.dfs.core.windows.net/run",
     "abfss://account@127.0.0.1:10000/box/run", "abfs://box/a:b@c"],
)  # fmt: skip
def test_addresses_without_secrets_are_taken(address):
    parsed("--out", address)


SECRETS = [
    f"s3://{KEY}:{SECRET}@lab/run",
    f"s3://{KEY}:sec/{SECRET}@lab/run",
    f"s3://{KEY}%3A{SECRET}%40lab/run",
    f"s3://{SECRET}@lab/run",
    f"gs://{KEY}:{SECRET}@lab/run",
    f"s3://lab/run?endpoint_override=http://{KEY}:{SECRET}@127.0.0.1:9000",
    f"s3://lab/run?endpoint_override=http%3A%2F%2F{KEY}%3A{SECRET}%40127.0.0.1",
    f"s3://lab/run?access_key={KEY}&secret_key={SECRET}",
    f"s3://lab/run?{SECRET}",
    f"s3://lab/run#{SECRET}",
    f"s3://{KEY}:[{SECRET}@lab/run",
    f"abfs://account:{SECRET}@lab.dfs.core.windows.net/run",
    f"abfs://account:1/{SECRET}@lab.dfs.core.windows.net/run",
    f"abfs://:{SECRET}@account.blob.core.windows.net/box/run",
    f"ftp://{KEY}:{SECRET}@host/run",
]


@pytest.mark.parametrize("setting", ["out", "start-from"])
@pytest.mark.parametrize("address", SECRETS)
def test_an_address_with_a_secret_is_refused_without_repeating_it(address, setting, capsys):
    assert main(["run", f"--{setting}", address]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"raysim: --{setting}")
    assert said.err.count("\n") == 1
    assert not any(secret in said.err for secret in (SECRET, "theirs", f"{KEY}:"))


@pytest.mark.parametrize("command", [["resume"], ["report"], ["show"], ["compare", "--methods", "fedavg", "--out"]])
def test_other_commands_do_not_repeat_it_either(command, capsys):
    assert main([*command, f"s3://{KEY}:{SECRET}@lab/run"]) == 2
    said = capsys.readouterr()
    assert not any(secret in said.out + said.err for secret in (SECRET, KEY))


def test_an_address_that_is_none_is_refused_by_where_it_was_given():
    with pytest.raises(
        InputError, match=r"^--start-from ftp://host/run: unknown kind of store; there are s3://, gs://"
    ):
        parsed("--start-from", "ftp://host/run")
    with pytest.raises(InputError, match=r"^--out s3://lab/run: unknown option 'speed' after the question mark; remov"):
        parsed("--out", "s3://lab/run?speed=9")


def test_no_message_has_the_credentials_of_an_address():
    assert one_line("'s3://key:a/secret@lab/run' and s3:/key:secret@lab") == "'s3://…@lab/run' and s3:/…@lab"
    assert (
        one_line("abfs://box@account/run, http://h:1/x, 12:30 a@b") == "abfs://box@account/run, http://h:1/x, 12:30 a@b"
    )
