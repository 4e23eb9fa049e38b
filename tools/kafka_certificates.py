"""Certificates for brokers and clients on loopback, by openssl; each good for a day.

ca.pem, other-ca.pem              two authorities that do not know of each other
broker.pem                        key and certificate for 127.0.0.1, in one file, as Kafka reads it
expired.pem                       the same, until yesterday
elsewhere.pem                     the same, for a host of another name
client.pem, client.key            a client's, CN=bruce; client-encrypted.key is the key behind PASSWORD
stranger.pem, stranger.key        a client's, by the other authority
"""

import subprocess
from pathlib import Path

from tools.kafka_install import KafkaError, find_program

PASSWORD = "of the client's key"  # noqa: S105  (the key is good for nothing)
CLIENT = "bruce"
"""The common name in the client's certificate."""
_DAY = "1"
_EXPIRED = "-1"
_LOOPBACK, _ELSEWHERE = "IP:127.0.0.1", "DNS:kafka.elsewhere.example"
_EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def make_certificates(directory: Path) -> None:
    """Make all of them, in a new directory. Raises KafkaError, KafkaMissing."""
    directory.mkdir(parents=True, exist_ok=True)
    for authority in ("ca", "other-ca"):
        _openssl(
            directory,
            *("req", "-x509", *_EC, "-days", _DAY, "-subj", f"/CN={authority}"),
            *("-keyout", f"{authority}.key", "-out", f"{authority}.pem"),
        )
    _issue(directory, "broker", "kafka", "ca", _LOOPBACK, _DAY)
    _issue(directory, "expired", "kafka", "ca", _LOOPBACK, _EXPIRED)
    _issue(directory, "elsewhere", "kafka", "ca", _ELSEWHERE, _DAY)
    _issue(directory, "client", CLIENT, "ca", _LOOPBACK, _DAY)
    _issue(directory, "stranger", CLIENT, "other-ca", _LOOPBACK, _DAY)
    for name in ("broker", "expired", "elsewhere"):
        certificate = directory / f"{name}.pem"
        certificate.write_text((directory / f"{name}.key").read_text() + certificate.read_text())
    _openssl(
        directory,
        *("pkcs8", "-topk8", "-v2", "aes-256-cbc", "-passout", f"pass:{PASSWORD}"),
        *("-in", "client.key", "-out", "client-encrypted.key"),
    )


def _issue(directory: Path, name: str, subject: str, authority: str, place: str, days: str) -> None:
    """A key and a certificate of an authority."""
    (directory / f"{name}.ext").write_text(f"subjectAltName={place}\n")
    _openssl(
        directory,
        *("req", *_EC, "-subj", f"/CN={subject}", "-keyout", f"{name}.key", "-out", f"{name}.csr"),
    )
    _openssl(
        directory,
        *("x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.pem", "-CAkey", f"{authority}.key"),
        *("-CAcreateserial", "-days", days, "-extfile", f"{name}.ext", "-out", f"{name}.pem"),
    )


def _openssl(directory: Path, *arguments: str) -> None:
    command = [find_program("openssl"), *arguments]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        raise KafkaError(f"openssl {arguments[0]} failed: {done.stderr.strip()}")
