"""Finds personal data with presidio-analyzer: JSON lines of {"text", "language"} in, of [[start, end, entity], …] out.

Runs in an environment of its own, without our code. Its pattern recognizers run on spaCy's blank pipelines unless the
languages' models are installed; without a model it finds no names and places, which our lines do not ask for either.
"""

from __future__ import annotations

import json
import sys
import time

import spacy
from presidio_analyzer import AnalyzerEngine, RecognizerRegistry
from presidio_analyzer.nlp_engine import SpacyNlpEngine

LANGUAGES = ("en", "de", "es", "fr", "pt")
MODELS = {language: f"{language}_core_news_sm" for language in LANGUAGES} | {"en": "en_core_web_sm"}
THRESHOLD = 0.35  # what presidio's own documentation takes where a recall matters


def main() -> None:
    engine = SpacyNlpEngine(
        models=[{"lang_code": language, "model_name": MODELS[language]} for language in LANGUAGES]
    )
    engine.nlp = {
        language: spacy.load(model) if spacy.util.is_package(model) else spacy.blank(language)
        for language, model in MODELS.items()
    }
    registry = RecognizerRegistry(supported_languages=list(LANGUAGES))
    registry.load_predefined_recognizers(languages=list(LANGUAGES), nlp_engine=engine)
    analyzer = AnalyzerEngine(
        registry=registry, nlp_engine=engine, supported_languages=list(LANGUAGES)
    )
    lines = [json.loads(line) for line in sys.stdin]
    started = time.process_time()
    for line in lines:
        found = analyzer.analyze(line["text"], language=line["language"], score_threshold=THRESHOLD)
        print(json.dumps([[one.start, one.end, one.entity_type] for one in found]))
    models = sum(spacy.util.is_package(model) for model in MODELS.values())
    elapsed = time.process_time() - started
    print(json.dumps({"seconds": elapsed, "models": models}), file=sys.stderr)


if __name__ == "__main__":
    main()
