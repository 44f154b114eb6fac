"""Names under which people keep keys, passwords and tokens. Files with such names never travel with a run."""

import fnmatch
import re

_PATTERNS = (
    # environments that hold passwords and tokens
    ".env", ".env.*", "*.env", ".envrc",
    # private keys and the containers of keys
    "*.pem", "*.key", "*.p12", "*.pfx", "*.ppk", "*.jks", "*.keystore", "*.kdbx",
    "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*",
    # passwords of tools
    ".netrc", "_netrc", ".pypirc", ".npmrc", ".pgpass", ".my.cnf", ".htpasswd", ".git-credentials", ".dockercfg",
    ".boto", ".s3cfg", ".databrickscfg", ".vault-token", "pip.conf", "kaggle.json", "kubeconfig", "*.keyring",
    "*.tfvars", "*.tfstate", "*.tfstate.*",
    # what was typed, passwords included
    ".*_history",
    # files that say it themselves
    "credentials*", "*credentials.json", "service[-_]account*.json", "serviceaccount*.json",
    "secrets.json", "secrets.toml", "secrets.yaml", "secrets.yml", "secrets.ini",
    # folders of tools
    ".aws", ".azure", ".ssh", ".gnupg", ".kube", ".docker", ".kaggle", ".huggingface", ".oci",
)  # fmt: skip
_CONFIG_FOLDERS = ("gcloud", "gh", "rclone", "sops")
"""Folders inside `.config` that hold credentials; the rest of `.config` does not."""

_SECRET_PART = re.compile("|".join(fnmatch.translate(pattern) for pattern in _PATTERNS))
_SECRET_PATH = re.compile(rf"(?:.*/)?\.config/(?:{'|'.join(_CONFIG_FOLDERS)})")


def is_secret(path: str) -> bool:
    """Whether a file or folder has the name of a secret; the caller asks for each of the folders above it as well.

    >>> is_secret("deploy/Server.KEY"), is_secret("home/.config/gcloud"), is_secret("src/keys.py")
    (True, True, False)
    """
    folded = path.lower()
    return _SECRET_PART.match(folded.rpartition("/")[2]) is not None or _SECRET_PATH.fullmatch(folded) is not None
