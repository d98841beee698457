"""Twenty children, four at work at a time, with asyncio: a Monte Carlo estimate, a part of it in each."""

import asyncio

from forkd import AsyncSandbox, AsyncSnapshot

CHILDREN = 20
AT_A_TIME = 4
CODE = """
points = numpy.random.default_rng(SEED).random((100_000, 2))
int(((points ** 2).sum(axis=1) < 1).sum())
"""


async def inside(sandbox: AsyncSandbox, seed: int, turn: asyncio.Semaphore) -> int:
    async with turn, sandbox:
        return int(await sandbox.eval(CODE.replace("SEED", str(seed)), timeout=600) or 0)


async def main() -> None:
    snapshot = await AsyncSnapshot.get("numpy")
    children = await snapshot.fork(CHILDREN)
    turn = asyncio.Semaphore(AT_A_TIME)
    counts = await asyncio.gather(*(inside(child, seed, turn) for seed, child in enumerate(children)))
    estimate = 4 * sum(counts) / (CHILDREN * 100_000)
    print(f"pi is about {estimate:.4f}")
    assert 3.1 < estimate < 3.2
    await snapshot.controller.aclose()


asyncio.run(main())
