import pytest

from daycount import days_in_month, days_in_year


def test_months():
    assert [days_in_month(2023, month) for month in range(1, 13)] == [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]


def test_leap_years():
    assert [days_in_month(year, 2) for year in (2020, 2021, 2024)] == [29, 28, 29]


def test_centuries():
    assert [days_in_year(year) for year in (1600, 1700, 1800, 1900, 2000, 2100)] == [366, 365, 365, 365, 366, 365]


def test_no_such_month():
    with pytest.raises(ValueError):
        days_in_month(2023, 13)
