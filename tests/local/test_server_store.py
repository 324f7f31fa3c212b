"""The store: URIs across processes, two processes at once, untrusted names, torn files."""

import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from mtrl_cli.local.errors import RefusedError
from mtrl_cli.local.store import (
    ExistsError,
    LinkError,
    MissingError,
    Ref,
    Store,
    check_name,
    new_model_id,
    parse_uri,
)
from tests.local.server_kit import (
    BASE_MODEL,
    backward,
    datum,
    make_base,
    sample,
    serving,
    start,
    step,
)

TEXT = [1, 5, 9, 13, 2, 30, 31, 32, 3]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base"))


def test_uris_outlive_the_process(tmp_path: Path, base: Path) -> None:
    store = tmp_path / "store"
    with serving(store, base) as client:
        session = client.session()
        model = client.model(session, rank=4)
        client.done("forward_backward", backward(model, 1, [datum(TEXT)]))
        client.done("optim_step", step(model, 2))
        state = client.done("save_weights", {"model_id": model, "seq_id": 3, "path": "R/a1/s-1"})
        snap = client.done(
            "save_weights_for_sampler", {"model_id": model, "seq_id": 4, "path": "R/a1/s-1"}
        )
        ask = {**sample("", TEXT, params={"seed": 2}), "sampling_session_id": None}
        before = client.done("asample", {**ask, "model_path": snap["path"]})
        old = client.call("asample", {**ask, "model_path": snap["path"]})["request_id"]
        more = client.done("forward_backward", backward(model, 5, [datum(TEXT)]))
    assert stat.S_IMODE(store.stat().st_mode) == 0o700
    with serving(store, base) as client:
        assert client.refused("retrieve_future", {"request_id": old})[0] == 404
        assert client.refused("optim_step", step(model, 5))[0] == 404
        assert client.done("asample", {**ask, "model_path": snap["path"]}) == before
        session = client.session()
        opened = client.call(
            "create_sampling_session", {"session_id": session, "model_path": snap["path"]}
        )
        again = client.done(
            "asample", sample(opened["sampling_session_id"], TEXT, params={"seed": 2})
        )
        assert again == before
        info = client.call("weights_info", {"tinker_path": state["path"]})
        assert info.pop("digest").startswith("sha256:")
        assert info == {
            "base_model": BASE_MODEL,
            "is_lora": True,
            "lora_rank": 4,
            "train_unembed": True,
            "train_mlp": True,
            "train_attn": True,
        }
        fresh = client.model(session, rank=4)
        assert fresh != model
        load = {"model_id": fresh, "seq_id": 1, "path": state["path"], "optimizer": True}
        client.done("load_weights", load)
        assert client.done("forward_backward", backward(fresh, 2, [datum(TEXT)])) == more
        runs = client.get("training_runs?limit=1&offset=1")
        assert runs["cursor"] == {"offset": 1, "limit": 1, "total_count": 2}
        assert runs["training_runs"][0]["training_run_id"] == model
        run = client.get(f"training_runs/{model}")
        assert run["last_checkpoint"]["tinker_path"] == state["path"]
        assert run["last_sampler_checkpoint"]["tinker_path"] == snap["path"]
        listed = client.get(f"models/{model}/checkpoints")["checkpoints"]
        assert {item["tinker_path"] for item in listed} == {state["path"], snap["path"]}
        url = f"/api/v1/training_runs/{model}/checkpoints/sampler_weights/R/a1/s-1"
        assert client.http.delete(url).status_code == 200
        assert client.http.delete(url).status_code == 404
        assert client.http.delete(url.replace("R/a1", "..%2F..")).status_code == 400
        assert len(client.get(f"models/{model}/checkpoints")["checkpoints"]) == 1
        # What the session holds in memory stays; a new session is refused.
        assert (
            client.done("asample", sample(opened["sampling_session_id"], TEXT, params={"seed": 2}))
            == before
        )
        body = {"session_id": session, "model_path": snap["path"]}
        assert client.refused("create_sampling_session", body)[0] == 404
        assert client.http.get("/api/v1/models/model_x/checkpoints").status_code == 404


def test_two_processes_on_one_store(tmp_path: Path, base: Path) -> None:
    with serving(tmp_path / "store", base) as one, serving(tmp_path / "store", base) as two:
        a, b = one.model(one.session()), two.model(two.session())
        assert a != b
        uri = one.done("save_weights_for_sampler", {"model_id": a, "seq_id": 1, "path": "s"})[
            "path"
        ]
        two.done(
            "save_weights_for_sampler", {"model_id": b, "seq_id": 1, "sampling_session_seq_id": 0}
        )
        ask = {
            **sample("", TEXT, params={"seed": 2}),
            "sampling_session_id": None,
            "model_path": uri,
        }
        assert one.done("asample", ask) == two.done("asample", ask)
        assert len(two.get("training_runs")["training_runs"]) == 2
        assert len(list((tmp_path / "store" / "ephemeral").glob("*.lock"))) == 2


def test_a_killed_process_leaves_a_store_that_works(tmp_path: Path, base: Path) -> None:
    process, _ready = start(tmp_path / "store", base)
    process.kill()
    process.communicate()
    assert len(list((tmp_path / "store" / "ephemeral").iterdir())) == 2
    with serving(tmp_path / "store", base) as client:
        assert client.session()
        assert len(list((tmp_path / "store" / "ephemeral").iterdir())) == 2
    assert list((tmp_path / "store" / "ephemeral").iterdir()) == []


def test_a_name_is_won_once(tmp_path: Path) -> None:
    stores = [Store(tmp_path) for _ in range(4)]
    model = new_model_id()
    stores[0].new_model(model, {"base_model": BASE_MODEL})
    ref = Ref(model, "weights", "a/b")

    def save(number: int) -> bool:
        try:
            stores[number % 4].save(ref, {"x": np.full(100, number)}, {"id": number})
        except ExistsError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = [n for n, ok in enumerate(pool.map(save, range(32))) if ok]
    assert len(won) == 1
    arrays, meta = stores[1].load(ref)
    assert (arrays["x"] == won[0]).all()
    assert meta["id"] == won[0]
    folder = tmp_path / "models" / model / "weights"
    assert [path.name for path in folder.iterdir()] == ["a+b.npz"]
    with pytest.raises(FileExistsError):
        stores[2].new_model(model, {})
    for store in stores:
        store.close()


def test_what_is_met_in_the_folder_is_not_trusted(tmp_path: Path) -> None:
    store = Store(tmp_path)
    model = new_model_id()
    store.new_model(model, {"base_model": BASE_MODEL})
    ref = Ref(model, "weights", "good")
    store.save(ref, {"x": np.zeros(3)}, {"id": "1"})
    folder = tmp_path / "models" / model / "weights"
    whole = (folder / "good.npz").read_bytes()
    (folder / "torn.npz").write_bytes(whole[:-20])
    (folder / "empty.npz").write_bytes(b"")
    (folder / "..evil.npz").write_bytes(whole)
    np.savez(folder / "pickled.npz", __meta__=np.array([{"id": 1}], dtype=object))
    np.savez(folder / "listmeta.npz", __meta__=np.frombuffer(b"[1]", np.uint8))
    (tmp_path / "models" / "other").mkdir()
    (tmp_path / "models" / "model_0123456789ab").mkdir()
    (folder / "linked.npz").symlink_to(folder / "good.npz")
    listed = {item.ref.name for item in store.checkpoints(model)}
    assert listed == {"good", "torn", "empty", "pickled", "listmeta"}  # by name: none is opened
    assert store.models() == [model]
    for name in ("torn", "empty", "pickled", "listmeta", "absent"):
        with pytest.raises(MissingError):
            store.load(Ref(model, "weights", name))
    with pytest.raises(MissingError):
        store.model("model_0123456789ab")
    store.close()


def test_no_link_below_the_store_is_written_deleted_or_swept_through(tmp_path: Path) -> None:
    disk, outside = tmp_path / "disk", tmp_path / "outside"
    disk.mkdir()
    (outside / "0123456789ab").mkdir(parents=True)
    precious = [outside / name for name in ("s.npz", "0123456789ab/one.npz", "0123456789ab.lock")]
    for file in precious:
        file.write_text("precious")
    root = tmp_path / "store"
    root.symlink_to(disk)  # where there is room
    store = Store(root)
    model, linked = new_model_id(), new_model_id()
    store.new_model(model, {})
    store.save(Ref(model, "weights", "s"), {"x": np.zeros(3)}, {})
    (disk / "models" / model / "sampler_weights").symlink_to(outside)
    (outside / "weights").mkdir()
    (disk / "models" / linked).symlink_to(outside)
    for ref in (Ref(model, "sampler_weights", "s"), Ref(linked, "weights", "s")):
        with pytest.raises(LinkError, match=f"^models/{ref.model_id}.* is a symbolic link, and"):
            store.save(ref, {"x": np.zeros(3)}, {}, overwrite=True)
        with pytest.raises(LinkError):
            store.delete(ref)
    store.delete(Ref(model, "weights", "s"))
    store.close()
    shutil.rmtree(disk / "ephemeral")
    (disk / "ephemeral").symlink_to(outside)
    with pytest.raises(OSError, match="ephemeral in it is a symbolic link"):
        Store(root)
    assert [file.read_text() for file in precious] == ["precious"] * 3
    assert sorted(path.name for path in outside.iterdir()) == [
        "0123456789ab",
        "0123456789ab.lock",
        "s.npz",
        "weights",
    ]


@pytest.mark.parametrize("uri", [
    "", "tinker://", "tinker://model_0123456789ab/weights/", "http://model_0123456789ab/weights/x",
    "tinker://model_0123456789ab/x/y", "tinker://model_0123456789ab/weights/../y",
    "tinker://model_0123456789ab/weights/a//b", "tinker://../weights/a",
    "tinker://model_0123456789ab/weights/a\n", "tinker://model_0123456789ab/weights/a\0b",
])  # fmt: skip
def test_bad_uris(uri: str) -> None:
    with pytest.raises(RefusedError):
        parse_uri(uri)


def test_names() -> None:
    assert check_name("20261129-122135-a7aa/a2/step-000012")
    ref = parse_uri("tinker://model_0123456789ab/sampler_weights/RUN/a1/step-1")
    assert (ref.name, ref.kind) == ("RUN/a1/step-1", "sampler_weights")
    assert ref.uri == "tinker://model_0123456789ab/sampler_weights/RUN/a1/step-1"
