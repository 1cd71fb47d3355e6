"""What a listener must be told."""

from __future__ import annotations

from epp.kube.copy import About, Change, Copy

A1 = About("a", "ns", "uid-1", "1")
A2 = About("a", "ns", "uid-1", "2")
ANEW = About("a", "ns", "uid-2", "3")
ELSEWHERE = About("a", "other", "uid-3", "4")


def test_new_and_changed_objects_are_put() -> None:
    copy = Copy()
    assert copy.put(A1, "one") == [Change("put", "one")]
    assert copy.put(A2, "two") == [Change("put", "two")]
    assert len(copy) == 1


def test_an_object_created_anew_is_gone_first() -> None:
    copy = Copy()
    copy.put(A1, "old")
    assert copy.put(ANEW, "new") == [Change("gone", "old"), Change("put", "new")]


def test_names_are_of_a_namespace() -> None:
    copy = Copy()
    copy.put(A1, "here")
    assert copy.put(ELSEWHERE, "there") == [Change("put", "there")]
    assert len(copy) == 2


def test_an_object_is_gone_once() -> None:
    copy = Copy()
    copy.put(A1, "one")
    assert copy.remove(A1.key) == [Change("gone", "one")]
    assert copy.remove(A1.key) == []


def test_what_a_list_does_not_name_is_gone() -> None:
    copy = Copy()
    copy.put(A1, "here")
    copy.put(ELSEWHERE, "there")
    assert copy.keep_only({A1.key}) == [Change("gone", "there")]
    assert copy.keep_only({A1.key}) == []


def test_only_the_same_version_of_the_same_object_is_known() -> None:
    copy = Copy()
    copy.put(A1, "one")
    assert copy.has(A1)
    assert not copy.has(A2)
    assert not copy.has(About("a", "ns", "uid-2", "1"))
    copy.put(About("b"), "without a version")
    assert not copy.has(About("b"))
