"""Why a peer was not measured."""


class PeerNotRunError(Exception):
    """It is not installed here, or its files do not fit."""
