"""The store of compiled programs: bounded, the least recently used go, and owners take theirs."""

import gc
import threading

import pytest

from keras_transformer.kernels.programs import MOST_PROGRAMS, PROGRAMS, Compiled, Programs

pytestmark = pytest.mark.backend_independent


class Owner:
    pass


def make(programs, owner, key, **options):
    return programs.get(owner, key, lambda: Compiled(lambda: key, compiled=True, **options))


def test_the_least_recently_used_goes():
    programs, owner = Programs(most=3), Owner()
    for key in "abc":
        make(programs, owner, key)
    assert make(programs, owner, "a")() == "a"  # used again: now "b" is the oldest
    make(programs, owner, "d")
    assert programs.keys(owner) == ["c", "a", "d"]
    assert programs.made == 4 and len(programs) == 3
    make(programs, owner, "b")
    assert programs.made == 5  # it had to be made again


def test_a_program_is_made_once_for_its_key():
    programs, owner, other = Programs(), Owner(), Owner()
    first = make(programs, owner, 1)
    assert make(programs, owner, 1) is first
    assert make(programs, other, 1) is not first and len(programs) == 2
    assert programs.peek(owner, 2) is None and programs.peek(owner, 1) is first


def test_an_owner_takes_its_programs_with_it():
    programs, owner, other = Programs(), Owner(), Owner()
    for key in range(5):
        make(programs, owner, key)
        make(programs, other, key)
    del owner
    gc.collect()
    assert len(programs) == 5 and programs.keys(other) == list(range(5))
    programs.forget(other)
    programs.forget(other)  # nothing is left: nothing happens
    assert len(programs) == 0
    make(programs, other, 1)
    del other
    gc.collect()
    assert len(programs) == 0


def test_what_lasts_stays_and_counts_for_ever():
    programs, owner = Programs(most=4, most_unevictable=2), Owner()
    assert programs.may_last() and programs.may_last() and not programs.may_last()
    assert not programs.may_last(2) and programs.unevictable == 2
    make(programs, owner, "x", unevictable=True)
    make(programs, owner, "y", unevictable=True)
    for key in range(10):
        make(programs, owner, key)
        assert len(programs) <= 4
    assert programs.keys(owner) == ["x", "y", 8, 9]
    programs.forget(owner)
    assert len(programs) == 2  # dropped, and still in memory


def test_the_first_call_is_alone_and_a_failed_one_is_tried_again():
    inside, most, fail = [], [], [True]
    barrier = threading.Barrier(8)

    def function():
        inside.append(1)
        most.append(len(inside))
        if fail:
            fail.clear()
            inside.pop()
            raise ValueError("once")
        inside.pop()
        return 5

    program, results = Compiled(function), []

    def run():
        barrier.wait(30)
        try:
            results.append(program())
        except ValueError as error:
            results.append(str(error))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(map(str, results)) == ["5"] * 7 + ["once"]
    assert most[:2] == [1, 1]  # the failed trace, and the one that was tried again


def test_many_threads_share_a_small_store():
    programs, owner, wrong = Programs(most=3), Owner(), []

    def run(seed):
        for i in range(300):
            key = (i * seed) % 7
            if make(programs, owner, key)() != key or len(programs) > 3 + 8:
                wrong.append(key)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and len(programs) == 3


def test_the_process_has_room_for_sixty():
    assert PROGRAMS.most == MOST_PROGRAMS <= 60 and PROGRAMS.most_unevictable < PROGRAMS.most
