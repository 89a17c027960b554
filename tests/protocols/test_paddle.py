from typing import Any

import numpy as np
import pytest

from penstock.errors import InputMismatch, PackageError
from penstock.protocols import paddle, pb, tensors

ARRAY = np.array([[18.901152]], np.float32)
ARRAY_TEXT = "array([[18.901152]], dtype=float32)"


def call(*pairs: tuple[str, str], sent: list[pb.Tensor] | None = None) -> paddle.Call:
    return paddle.Call([k for k, _ in pairs], [v for _, v in pairs], sent or [])


class TestUnpack:
    def test_texts_stay_texts(self) -> None:
        request = call(("x", "__import__('os')"), ("y", "array([1])"))
        assert paddle.unpack(request) == ({"x": "__import__('os')", "y": "array([1])"}, False)

    def test_the_last_of_equal_keys_is_used(self) -> None:
        assert paddle.unpack(call(("x", "1"), ("x", "2")))[0] == {"x": "2"}

    def test_surplus_values_are_ignored(self) -> None:
        assert paddle.unpack(paddle.Call(["x"], ["1", "2"], []))[0] == {"x": "1"}

    def test_fewer_values_than_keys_are_refused(self) -> None:
        with pytest.raises(PackageError, match="2 keys, but only 1 values"):
            paddle.unpack(paddle.Call(["x", "y"], ["1"], []))

    def test_a_tensor_replaces_a_text_of_the_same_name_and_has_its_lod(self) -> None:
        tensor = tensors.encode("x", ARRAY, lod=[0, 1])
        feed, _ = paddle.unpack(call(("x", "text"), sent=[tensor]))
        np.testing.assert_array_equal(feed["x"], ARRAY)
        assert feed["x.lod"].tolist() == [[0], [1]]
        assert list(feed) == ["x", "x.lod"]

    def test_the_last_of_equal_tensors_is_used(self) -> None:
        sent = [tensors.encode("x", "first"), tensors.encode("x", "last")]
        assert paddle.unpack(call(sent=sent))[0] == {"x": "last"}

    @pytest.mark.parametrize("name", ["", "n" * 257])
    def test_a_tensor_with_an_empty_or_too_long_name_is_refused(self, name: str) -> None:
        with pytest.raises(InputMismatch, match="1 to 256 characters"):
            paddle.unpack(call(sent=[tensors.encode(name, ARRAY)]))

    @pytest.mark.parametrize(("value", "requested"), [("1", True), ("0", False), ("", False)])
    def test_the_pair_that_requests_a_profile_is_removed(self, value: str, requested: bool) -> None:
        feed, profile = paddle.unpack(call(("x", "1"), ("pipeline.profile", value)))
        assert feed == {"x": "1"}
        assert profile is requested

    def test_a_message_is_unpacked_like_a_call(self) -> None:
        request = call(("x", "1"), sent=[tensors.encode("t", "text")])
        assert paddle.unpack(request.message()) == paddle.unpack(request)


class TestPack:
    def pack(self, value: dict, typed: bool = False, keep_text: bool = True) -> paddle.Reply:
        return paddle.pack(value, typed=typed, keep_text=keep_text)

    def test_texts_are_sent_unchanged(self) -> None:
        reply = self.pack({"a": "1", "b": np.str_("x")})
        assert (reply.err_no, reply.err_msg, reply.tensors) == (0, "", [])
        assert (reply.key, reply.value) == (["a", "b"], ["1", "x"])

    def test_arrays_and_lists_of_texts_are_sent_as_repr(self) -> None:
        reply = self.pack({"price": ARRAY, "names": ["a", "b"]})
        assert reply.key == ["price", "names"]
        assert reply.value == [ARRAY_TEXT, "['a', 'b']"]

    def test_an_empty_result_is_an_empty_reply(self) -> None:
        reply = self.pack({})
        assert (reply.err_no, reply.key, reply.value) == (0, [], [])

    @pytest.mark.parametrize(
        ("bad", "kind"),
        [
            (1.5, "<class 'float'>"),
            (None, "<class 'NoneType'>"),
            ([], "<class 'list'>"),
            ([1], "<class 'list'>"),
            (ARRAY, "<class 'numpy.ndarray'>"),
        ],
        ids=repr,
    )
    def test_the_first_value_that_is_not_a_text_is_an_error(self, bad: object, kind: str) -> None:
        reply = self.pack({"a": "1", "b": bad, "c": "2"})
        assert reply.err_no == 7000
        assert reply.err_msg == f"@DAGExecutor fetch var type must be str({kind})."
        assert (reply.key, reply.value) == (["a"], ["1"])

    @pytest.mark.parametrize("first", [ARRAY, ["a"]], ids=["array", "texts"])
    @pytest.mark.parametrize(
        ("other", "kind"), [(np.float32(1.5), "<class 'numpy.float32'>"), (2, "<class 'int'>")]
    )
    def test_a_value_of_another_type_among_arrays_is_named(
        self, first: object, other: object, kind: str
    ) -> None:
        reply = self.pack({"x": first, "label": "cat", "score": other})
        assert reply.err_no == 7000
        assert reply.err_msg == (
            f"@DAGExecutor fetch var type must be str({type(first)}). "
            f"'score' is neither a text nor an array: {kind}."
        )

    def test_a_value_of_another_type_before_arrays_has_the_originals_error(self) -> None:
        reply = self.pack({"score": np.float32(1.5), "x": ARRAY})
        kind = "<class 'numpy.float32'>"
        assert reply.err_msg == f"@DAGExecutor fetch var type must be str({kind})."

    def test_a_typed_reply_keeps_the_text_for_old_clients(self) -> None:
        reply = self.pack({"price": ARRAY, "names": ["a"]}, typed=True)
        assert reply.value == [ARRAY_TEXT, "['a']"]
        assert [tensor.name for tensor in reply.tensors] == ["price"]
        np.testing.assert_array_equal(tensors.decode(reply.tensors[0])[0], ARRAY)

    def test_a_typed_reply_without_keep_text_omits_the_text_of_its_tensors(self) -> None:
        reply = self.pack({"price": ARRAY, "names": ["a"]}, typed=True, keep_text=False)
        assert reply.key == ["names"]
        assert [tensor.name for tensor in reply.tensors] == ["price"]

    def test_arrays_that_tensors_do_not_support_are_sent_as_text(self) -> None:
        value = {"z": np.array([1j]), "y": np.array(["a"])}
        reply = self.pack(value, typed=True, keep_text=False)
        assert reply.key == ["z", "y"]
        assert reply.tensors == []

    @pytest.mark.parametrize(
        ("dtype", "instead"),
        [("uint32", "int64"), ("uint64", "int64"), ("longdouble", "float64")],
    )
    def test_dtypes_that_tensors_do_not_support_are_refused_with_a_replacement(
        self, dtype: str, instead: str
    ) -> None:
        value = {"ids": np.zeros(2, dtype), "x": ARRAY}
        reply = paddle.pack(value, typed=True, keep_text=False, op="rank")
        assert (reply.err_no, reply.key, reply.tensors) == (7000, [], [])
        assert reply.err_msg == (
            f"tensor 'ids': an array of {np.dtype(dtype)} cannot be sent: convert it to {instead}. "
            "The output 'ids' of op 'rank' cannot be sent."
        )
        beside_text = paddle.pack(value, typed=True, keep_text=True)
        assert (beside_text.err_no, beside_text.key) == (0, ["ids", "x"])

    def test_texts_and_arrays_may_be_mixed_without_keep_text(self) -> None:
        value = {"label": "cat", "score": ARRAY}
        assert self.pack(value, typed=True, keep_text=True).err_no == 7000
        reply = self.pack(value, typed=True, keep_text=False)
        assert (reply.err_no, reply.key, reply.value) == (0, ["label"], ["cat"])
        assert [tensor.name for tensor in reply.tensors] == ["score"]

    def test_a_lod_is_sent_in_its_tensor(self) -> None:
        value = {"x": np.zeros((3, 1)), "x.lod": np.array([0, 1, 3, 3])}
        reply = self.pack(value, typed=True, keep_text=False)
        assert reply.key == []
        assert [(tensor.name, list(tensor.lod)) for tensor in reply.tensors] == [
            ("x", [0, 1, 3, 3])
        ]

    def test_an_error_reply_has_no_tensors(self) -> None:
        reply = self.pack({"score": ARRAY, "n": 1}, typed=True, keep_text=False)
        assert (reply.err_no, reply.tensors) == (7000, [])

    def test_names_must_be_texts(self) -> None:
        with pytest.raises(PackageError, match="must be texts, got int"):
            self.pack({1: "x"}, typed=True)


def test_the_repr_of_a_call_names_its_service_and_sizes() -> None:
    request = paddle.Call(["x"], ["1"], [], "uci", "prediction", 7, nbytes=33)
    assert repr(request) == "<Call uci/prediction log_id=7 pairs=1 tensors=0 bytes=33>"
    assert not request.typed
    assert request.message().logid == 7
    assert "7000" in repr(paddle.Reply(err_no=7000))


def test_pieces_are_joined_under_their_names() -> None:
    pieces = [{"t": f"a{n}", "n": n, "x": np.full(2, n, np.float32), "d": {}} for n in range(3)]
    joined = paddle.join(pieces)
    assert joined["t"] == ["a0", "a1", "a2"]
    assert joined["n"].tolist() == [0, 1, 2]
    assert (joined["x"].dtype, joined["x"].shape) == (np.float32, (3, 2))
    assert joined["d"] == [{}, {}, {}]
    assert paddle.join([]) == {}


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ([{"a": 1}, {"b": 1}], "different names"),
        ([{"a": np.zeros(2)}, {"a": np.zeros(3)}], "'a' are not one array"),
        ([{"a": np.zeros(2)}, {"a": np.zeros(2, np.float32)}], "'a' are not one array"),
        ([{"a": np.zeros(1)}, {"a": "text"}], "'a' are not one array"),
    ],
)
def test_pieces_that_cannot_be_joined_are_refused(pieces: list[Any], text: str) -> None:
    with pytest.raises(InputMismatch, match=text):
        paddle.join(pieces)
