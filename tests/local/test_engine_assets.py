"""The shipped model and the recipe that made it: tokenizer, episodes, play at the start."""

import random
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

import mtrl_cli
from mtrl_cli.local.engine import Sampler, SampleSpec, Shape, load_base
from mtrl_cli.local.engine.weights import FILE
from mtrl_cli.local.warmstart import training, vocabulary
from mtrl_cli.local.warmstart.episodes import RECALLED, Scripter
from mtrl_cli.local.warmstart.muon import orthogonal
from mtrl_cli.tasks.blackjack import text
from mtrl_cli.tasks.blackjack.game import Game

ASSETS = Path(mtrl_cli.__file__).parent / "assets" / "mtrl-tiny"
CHAT, TEMPLATE = vocabulary.renderer(Tokenizer.from_file(str(ASSETS / vocabulary.FILE)))


def test_the_files_are_small() -> None:
    assert (ASSETS / FILE).stat().st_size < 400_000
    assert (ASSETS / vocabulary.FILE).stat().st_size < 50_000


def test_training_the_tokenizer_again_gives_the_shipped_one(tmp_path: Path) -> None:
    vocabulary.save(vocabulary.train(), tmp_path)
    assert (tmp_path / vocabulary.FILE).read_bytes() == (ASSETS / vocabulary.FILE).read_bytes()


def test_any_text_survives() -> None:
    for sample in ("hello\tworld\r\n", "Zürich 21点 🂡", "\x00\x7f", '{"a": [1, 2]}', "  "):
        assert CHAT.decode(CHAT.encode(sample)) == sample


def test_what_matters_is_one_token() -> None:
    words = [*(f" {number}" for number in range(2, 32)), " A", " J", " Q", " K"]
    words += ["hit", "stand", "soft", "hard", *vocabulary.SPECIAL, *vocabulary.IN_TURN]
    assert {word: len(CHAT.encode(word)) for word in words} == dict.fromkeys(words, 1)
    hit, stand = (CHAT.encode(vocabulary.call_text(action)) for action in ("hit", "stand"))
    assert len(hit) == len(stand) == 5
    assert sum(a != b for a, b in zip(hit, stand, strict=True)) == 1


def test_scripted_episodes_are_the_clients_streams() -> None:
    scripter, rng = Scripter(CHAT, TEMPLATE), random.Random(1)
    for _ in range(20):
        episode = scripter.play(rng)
        ids = episode.tokens.tolist()
        written = CHAT.decode(ids)
        assert text.SYSTEM_PROMPT in written
        assert len(episode.sampled) == len(ids)
        actions = {CHAT.decode([ids[at + 1]]) for at in episode.decisions}
        assert actions <= {"hit", "stand"}
        for seen in episode.observed:
            observation = CHAT.decode(seen.tolist())
            assert len(seen) == RECALLED
            assert observation in written
            assert "Dealer: " in observation
            assert observation.endswith(".")
        spoken = CHAT.decode([t for t, mine in zip(ids, episode.sampled, strict=True) if mine])
        assert spoken.count("<tool_call>") == len(episode.decisions)


def test_the_model_plays_a_coin_flip() -> None:
    """Random play returns -0.393; here on 400 games (standard error 0.046)."""
    shape, weights = load_base(ASSETS)
    assert shape.vocab == len(CHAT)
    sampler = Sampler(shape)
    games = {seed: Game.deal(seed) for seed in range(400)}
    streams = {}
    for seed, game in games.items():
        messages = [
            {"role": "system", "content": text.SYSTEM_PROMPT},
            {"role": "user", "content": text.hand(game)},
        ]
        streams[seed] = TEMPLATE.render_ids(
            messages, tools=list(text.TOOLS), add_generation_prompt=True
        )
    stops = frozenset(TEMPLATE.get_stop_token_ids())
    actions, invalid = [], 0

    def submit(seed: int) -> None:
        spec = SampleSpec(tuple(streams[seed]), 40, stops, seed=1000 * seed + len(streams[seed]))
        sampler.submit(seed, "base", weights, spec)

    for seed in games:
        submit(seed)
    while sampler.active:
        for key, completion in sampler.step():
            assert isinstance(key, int)
            calls = TEMPLATE.parse_response(completion.tokens).tool_calls
            action = (calls[0].arguments or {}).get("action") if calls else None
            if action not in ("hit", "stand"):
                invalid += 1
                games[key].reward = -1.0
                continue
            actions.append(action)
            game = games[key]
            game.hit() if action == "hit" else game.stand()
            if not game.over:
                reply = [{"role": "tool", "content": text.hand(game)}]
                bridged = TEMPLATE.bridge_to_next_turn(streams[key], completion.tokens, reply)
                assert bridged is not None
                streams[key] = list(bridged.token_ids)
                submit(key)
    rewards = [game.reward for game in games.values()]
    assert np.mean(rewards) == pytest.approx(-0.393, abs=0.14)
    assert actions.count("hit") / len(actions) == pytest.approx(0.5, abs=0.07)
    assert invalid <= 0.025 * len(actions)


def test_muon_makes_updates_orthogonal() -> None:
    matrix = np.random.default_rng(0).standard_normal((16, 64)).astype(np.float32)
    singular = np.linalg.svd(orthogonal(matrix), compute_uv=False)
    assert 0.6 < singular.min() < singular.max() < 1.4


def test_the_warm_start_learns_and_repeats() -> None:
    """A few steps of a narrow model: the losses fall, and the same seed gives the same bits."""

    def run() -> tuple[list[float], list[float], dict[str, np.ndarray]]:
        token, recall = [], []

        def report(_step: int, token_loss: float, recall_loss: float) -> None:
            token.append(token_loss)
            recall.append(recall_loss)

        shape = Shape(vocab=len(CHAT), width=32, layers=1, heads=2)
        recipe = training.Recipe(steps=25, episodes=8)
        weights = training.run(shape, Scripter(CHAT, TEMPLATE), recipe, 3, report)
        return token, recall, weights

    first, second = run(), run()
    assert first[0][-1] < 0.7 * first[0][0]
    assert first[1][-1] < 0.9 * first[1][0]
    assert first[:2] == second[:2]
    assert all(np.array_equal(second[2][name], value) for name, value in first[2].items())
