"""Schemas as pydantic writes them: models as applications have them, and random ones of the same kinds of fields."""
import datetime
import decimal
import enum
import ipaddress
import pathlib
import uuid
from typing import Annotated, Any, Generic, Literal, Optional, TypeVar, Union

import pydantic
from pydantic import AnyUrl, BaseModel, ConfigDict, Field, HttpUrl, RootModel


class Colour(str, enum.Enum):
    RED = "red"
    GREEN = "green"
    BLUE = "blue"


class Priority(enum.IntEnum):
    LOW = 1
    MEDIUM = 2
    HIGH = 3


class Currency(enum.Enum):
    EUR = "EUR"
    USD = "USD"
    JPY = "JPY"
    GBP = "GBP"


class Address(BaseModel):
    street: str
    city: str
    postal_code: str = Field(pattern=r"^\d{5}(-\d{4})?$")
    country: str = Field(min_length=2, max_length=2, description="An ISO 3166 code.")


class Person(BaseModel):
    """Somebody who is mentioned in a text."""

    name: str
    age: Optional[int] = Field(None, ge=0, le=150)
    email: Optional[Annotated[str, Field(json_schema_extra={"format": "email"})]] = None
    home: Optional[Address] = None


class Step(BaseModel):
    explanation: str
    output: str


class MathReasoning(BaseModel):
    steps: list[Step]
    final_answer: str


class LineItem(BaseModel):
    sku: str = Field(pattern=r"^[A-Z]{3}-[0-9]{4}$")
    quantity: int = Field(gt=0)
    unit_price: decimal.Decimal = Field(ge=0)


class Invoice(BaseModel):
    model_config = ConfigDict(extra="forbid")
    number: uuid.UUID
    issued: datetime.date
    due: Optional[datetime.date] = None
    currency: Currency = Currency.EUR
    lines: list[LineItem] = Field(min_length=1)
    bill_to: Address
    ship_to: Optional[Address] = None


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(9, ge=1, le=9)


class Dog(BaseModel):
    kind: Literal["dog"]
    breed: str
    good: bool = True


class Parrot(BaseModel):
    kind: Literal["parrot", "bird"]
    words: list[str] = []


class Owner(BaseModel):
    pets: list[Annotated[Union[Cat, Dog, Parrot], Field(discriminator="kind")]]
    favourite: Union[Cat, Dog]


class Tree(BaseModel):
    value: float
    left: Optional["Tree"] = None
    right: Optional["Tree"] = None


class Comment(BaseModel):
    author: str
    written: datetime.datetime
    replies: list["Comment"] = Field(default_factory=list)


class Employee(BaseModel):
    name: str
    manages: list["Team"] = []


class Team(BaseModel):
    title: str
    members: list[Employee]


class Point(BaseModel):
    model_config = ConfigDict(frozen=True)
    x: float
    y: float


class Geometry(BaseModel):
    outline: list[tuple[float, float]]
    box: tuple[Point, Point]
    label: tuple[str, int, bool] = ("a", 1, True)
    path: tuple[float, ...] = ()


class Event(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    event_name: str = Field(alias="eventName")
    starts_at: datetime.datetime = Field(alias="startsAt")
    lasts: datetime.timedelta
    at: datetime.time
    url: HttpUrl
    attendees: list[Person] = Field(max_length=10)


class Settings(BaseModel):
    host: ipaddress.IPv4Address
    fallback: ipaddress.IPv6Address
    network: ipaddress.IPv4Network
    folder: pathlib.Path
    secret: pydantic.SecretStr
    token: bytes
    blob: pydantic.Base64Str
    options: dict[str, Any]
    limits: dict[Literal["cpu", "memory"], int]
    levels: dict[str, dict[str, list[int]]]
    retries: pydantic.NonNegativeInt
    ratio: Annotated[float, Field(gt=0, lt=1)]
    step: Annotated[int, Field(multiple_of=5)]


class Tags(RootModel[list[str]]):
    pass


class Index(RootModel[dict[str, list[Point]]]):
    pass


class Shape(RootModel[Union[Cat, list[int], None]]):
    pass


T = TypeVar("T")


class Page(BaseModel, Generic[T]):
    items: list[T]
    total: int = Field(ge=0)
    cursor: Optional[str] = None


class Result(BaseModel, Generic[T]):
    ok: bool
    value: Optional[T] = None
    error: Optional[str] = Field(None, max_length=200)


class Sentiment(BaseModel):
    label: Literal["positive", "negative", "neutral"]
    score: float = Field(ge=0.0, le=1.0)
    highlights: Annotated[list[str], Field(max_length=3)] = []


class Query(BaseModel):
    table: Literal["orders", "customers", "products"]
    columns: list[Literal["id", "status", "delivered_at", "price"]]
    conditions: list["Condition"]
    order: Literal["asc", "desc"] = "asc"
    limit: Optional[int] = Field(None, ge=1, le=1000)


class Dynamic(BaseModel):
    column_name: str


class Condition(BaseModel):
    column: str
    operator: Literal["=", ">", "<", "<=", ">=", "!="]
    value: Union[str, int, float, bool, None, Dynamic]


class Palette(BaseModel):
    chosen: set[Colour]
    order: frozenset[Literal[1, 2, 3]] = frozenset()


class Keywords(BaseModel):
    words: set[str]


class Money(BaseModel):
    amount: decimal.Decimal = Field(max_digits=8, decimal_places=2)
    currency: Currency


class Extra(BaseModel):
    model_config = ConfigDict(extra="allow")
    id: int
    colour: Colour = Colour.RED
    level: Priority


class Release(BaseModel):
    version: str = Field(pattern=r"^v?\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$")
    homepage: AnyUrl
    checksum: str = Field(pattern="^[a-f0-9]{64}$")
    yanked: bool = Field(False, deprecated=True)
    notes: Annotated[str, Field(min_length=1, max_length=500)]


MODELS = [
    Address, Person, MathReasoning, Invoice, Owner, Tree, Comment, Team, Geometry, Event, Settings, Tags, Index, Shape,
    Page[Person], Page[int], Page[Result[Point]], Result[list[str]], Result[Tree], Sentiment, Query, Palette, Keywords,
    Money, Extra, Release]

NAMES = """title summary name description category status amount count total price rating score confidence source target
author owner city country language topic reason notes details tags labels items steps results entries options values
created updated due start end width height weight ratio limit offset first_name last_name phone address comment answer
question evidence quote location brand model colour size quantity unit discount tax reference page section chapter
verdict severity impact priority assignee reviewer branch commit path command""".split()
WORDS = "alpha beta gamma open closed pending small medium large yes no unknown north south east west draft final".split()


def simple_field(rng):
    """Returns the annotation of a field that holds one value."""
    bounded = lambda low: rng.randrange(low, low + 50)
    return rng.choice([
        lambda: str, lambda: str, lambda: str, lambda: str, lambda: int, lambda: int, lambda: float, lambda: bool,
        lambda: Literal[tuple(rng.sample(WORDS, rng.randrange(2, 6)))], lambda: Literal[tuple(rng.sample(WORDS, 3))],
        lambda: rng.choice([Colour, Priority, Currency]),
        lambda: datetime.date, lambda: datetime.datetime, lambda: rng.choice([datetime.time, datetime.timedelta]),
        lambda: uuid.UUID, lambda: HttpUrl, lambda: rng.choice([decimal.Decimal, pathlib.Path, Any]),
        lambda: Annotated[int, Field(ge=rng.randrange(-5, 2), le=bounded(2))],
        lambda: Annotated[float, Field(ge=0, le=rng.choice([1, 5, 10, 100]))],
        lambda: Annotated[str, Field(min_length=1, max_length=bounded(5))],
        lambda: Annotated[str, Field(max_length=bounded(20))],
        lambda: Annotated[str, Field(pattern=rng.choice(PATTERNS))],
        lambda: rng.choice([Literal["fixed"], pydantic.PositiveInt, pydantic.NegativeFloat, pydantic.AwareDatetime]),
    ])()


PATTERNS = [r"^[A-Z]{2,3}$", r"^\d{4}-\d{2}$", r"^[a-z][a-z0-9_]*$", r"^#[0-9a-fA-F]{6}$", r"^\+?[0-9 ]{7,15}$", r"^[\w.-]+$", r"\S"]


def field_type(rng, models):
    """Returns the annotation of a field, which may be a container of others or of models."""
    inner = lambda: rng.choice(models) if models and rng.random() < 0.5 else simple_field(rng)
    kind = rng.random()
    if kind < 0.5:
        return simple_field(rng)
    if kind < 0.64:
        return list[inner()]
    if kind < 0.68:
        return Annotated[list[inner()], Field(min_length=rng.randrange(2), max_length=rng.randrange(2, 12))]
    if kind < 0.78:
        return Optional[inner()]
    if kind < 0.86 and models:
        return rng.choice(models)
    if kind < 0.90:
        return dict[str, inner()]
    if kind < 0.94:
        return Union[int, str] if rng.random() < 0.4 else Union[str, list[str], None]
    if kind < 0.96:
        return tuple[inner(), inner()]
    if kind < 0.972:
        return set[rng.choice([Colour, Literal["a", "b", "c", "d"]])]
    if kind < 0.976:
        return set[rng.choice([str, int])]
    return Annotated[Union[Cat, Dog, Parrot], Field(discriminator="kind")]


def random_model(rng, name, models, most=9, **config):
    fields = {}
    for field in rng.sample(NAMES, rng.randrange(1, most)):
        kind = field_type(rng, models)
        style = rng.random()
        if style < 0.55:
            fields[field] = (kind, Field(description=f"The {field} of it.") if rng.random() < 0.4 else ...)
        elif style < 0.7:
            fields[field] = (Optional[kind], None)
        elif style < 0.8:
            fields[field] = (Optional[kind], Field(None, alias=field.title().replace("_", "")))
        else:
            fields[field] = (Optional[kind], ...)
    if rng.random() < 0.35:
        config["extra"] = "forbid"
    return pydantic.create_model(name, __config__=ConfigDict(**config), **fields)


def random_models(rng, count):
    """Returns models, each with up to three others within it."""
    made = []
    for number in range(count):
        inner = []
        for part in range(rng.randrange(4)):
            inner.append(random_model(rng, f"Part{number}{'ABC'[part]}", list(inner), 5))
        made.append(random_model(rng, f"Answer{number}", inner))
    return made


def schemas(rng, count):
    models = MODELS + random_models(rng, count - len(MODELS))
    return [model.model_json_schema() for model in models]
