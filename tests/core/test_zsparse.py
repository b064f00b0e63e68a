"""The import path of sparse attention that programs know from elsewhere."""

import zse.core.zsparse
import zse.sparse


def test_its_names_are_those_of_zse_sparse():
    for name in zse.core.zsparse.__all__:
        assert getattr(zse.core.zsparse, name) is getattr(zse.sparse, name)
