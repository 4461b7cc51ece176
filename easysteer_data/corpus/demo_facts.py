"""The demo corpus `builtin:city_facts`: a true and a false statement of each city in city_facts.csv.

The table leaves out disputed places, names that two of its countries share, and countries full of
namesakes (Paris, Texas): each false statement must be plainly false.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from easysteer_data.corpus.readers import read_csv
from easysteer_data.corpus.record import Record

NAME = "builtin:city_facts"

# With this seed no false country has a place of 1,000 people or more by the city's name (GeoNames, 2026).
_SEED = 14

_TABLE = Path(__file__).with_name("city_facts.csv")


def read_city_facts() -> Iterator[Record]:
    """Yield the statements, the true one of a city before its false one.

    Columns: id ("paris-true"), text, label (1 true, 0 false), city, country (the one stated).
    Sources are lines of the table.
    """
    facts = list(read_csv(_TABLE))
    cities = [fact.text("city") for fact in facts]
    countries = [fact.text("country") for fact in facts]
    stated = zip(facts, cities, countries, false_countries(cities, countries), strict=True)
    for fact, city, true_country, false_country in stated:
        source = f"{NAME}:{fact.source.rpartition(':')[2]}"
        for truth, label, country in (("true", 1, true_country), ("false", 0, false_country)):
            columns = {
                "id": f"{city.lower().replace(' ', '-')}-{truth}",
                "text": f"The city of {city} is in {country}.",
                "label": label,
                "city": city,
                "country": country,
            }
            yield Record(source, columns)


def false_countries(cities: Sequence[str], countries: Sequence[str]) -> list[str]:
    """Return a wrong country for each city.

    The true countries are dealt out anew, so each country is stated as often in false statements as in
    true ones and tells nothing of the label. The order is that of the cities' hashes: it looks random
    and is the same everywhere. A city that got its own country back swaps with the first city for which
    the swap makes both wrong; there is one unless a country has more than half of the cities.
    """
    order = sorted(range(len(cities)), key=lambda i: hashlib.sha256(f"{_SEED} {cities[i]}".encode()).digest())
    dealt = [countries[i] for i in order]
    for i, country in enumerate(countries):
        if dealt[i] == country:
            j = next(j for j in range(len(dealt)) if country not in (dealt[j], countries[j]))
            dealt[i], dealt[j] = dealt[j], dealt[i]
    return dealt
