import asyncio

import pytest
from route_world import World


@pytest.fixture
def world():
    """Return a function that runs a test's coroutine in a world of so many replicas."""

    def run(num_replicas, test, **options):
        async def main():
            async with asyncio.timeout(120), World(num_replicas, options) as made:
                await test(made)

        asyncio.run(main())

    return run
