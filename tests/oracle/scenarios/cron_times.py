"""When schedules come due: nextRun against an independent calendar, in several time zones.

Each note holds the expression and facts that do not depend on the day of the run: that nextRun equals the first
matching instant found by walking the calendar, and its clock fields in the zone.
"""

import datetime
import zoneinfo

from oracle import scenario


def walk(now_ms, tz, hours, minutes, seconds=(0,), day=lambda d: True):
    """First instant after now_ms whose wall clock in tz has one of the given hours, minutes, seconds on a matching day."""
    zone = zoneinfo.ZoneInfo(tz)
    now = datetime.datetime.fromtimestamp(now_ms / 1000, zone)
    for ahead in range(366 * 9):
        date = now.date() + datetime.timedelta(days=ahead)
        if not day(date):
            continue
        for h in hours:
            for m in minutes:
                for sec in seconds:
                    t = datetime.datetime(date.year, date.month, date.day, h, m, sec, tzinfo=zone)
                    ms = int(t.timestamp() * 1000)
                    if ms > now_ms:
                        return ms
    return None


def check(s, schedule, tz, hours, minutes, seconds=(0,), day=lambda d: True):
    def now():
        return s.quiet.cmd(cmd="Ping")["data"]["time"]

    before = now()
    got = s.quiet.cmd(cmd="Cron", name=s.uid("c"), queue=s.q(), data={}, schedule=schedule, timezone=tz)
    after = now()
    s.quiet.cmd(cmd="CronDelete", name=s.uid("c"))
    if not got["ok"]:
        s.note([schedule, tz, got["error"]])
        return
    at = got["cron"]["nextRun"]
    local = datetime.datetime.fromtimestamp(at / 1000, zoneinfo.ZoneInfo(tz))
    wanted = {walk(t, tz, hours, minutes, seconds, day) for t in (before, after)}
    fields = [
        local.hour if len(hours) == 1 else "*",
        local.minute if len(minutes) == 1 else "*",
        local.second if len(seconds) == 1 else "*",
    ]
    s.note([schedule, tz, fields, "as expected" if at in wanted else f"expected {sorted(wanted)}, got {at}"])


H, M, S = range(24), range(60), range(60)


@scenario
def minutes_of_every_hour(s):
    """Lists, ranges, steps and offsets in the minute field."""
    check(s, "* * * * *", "UTC", H, M)
    check(s, "*/15 * * * *", "UTC", H, range(0, 60, 15))
    check(s, "*/7 * * * *", "UTC", H, range(0, 60, 7))
    check(s, "3/20 * * * *", "UTC", H, range(3, 60, 20))
    check(s, "10-20/5,50 * * * *", "UTC", H, [10, 15, 20, 50])
    check(s, "59,0,30 * * * *", "UTC", H, [0, 30, 59])
    check(s, "0-59/100 * * * *", "UTC", H, [0])
    check(s, "@hourly", "UTC", H, [0])


@scenario
def hours_of_the_day(s):
    """Fixed times, working hours and steps in the hour field."""
    check(s, "30 12 * * *", "UTC", [12], [30])
    check(s, "0 9-17 * * *", "UTC", range(9, 18), [0])
    check(s, "15 */6 * * *", "UTC", [0, 6, 12, 18], [15])
    check(s, "0 5/9 * * *", "UTC", [5, 14, 23], [0])
    check(s, "@daily", "UTC", [0], [0])
    check(s, "@midnight", "Asia/Tokyo", [0], [0])


@scenario
def zones_with_odd_offsets(s):
    """The clock is read in the scheduler's zone: half and quarter hours, far east and west, and fixed offsets."""
    for tz in (
        "Europe/Rome",
        "America/New_York",
        "America/Los_Angeles",
        "Asia/Kolkata",
        "Asia/Kathmandu",
        "Australia/Adelaide",
        "Pacific/Kiritimati",
        "Pacific/Marquesas",
        "Etc/GMT+5",
        "UTC",
    ):
        check(s, "45 11 * * *", tz, [11], [45])
        check(s, "0 20 * * *", tz, [20], [0])


@scenario
def days_of_the_week(s):
    """Numbers, names and ranges; 0 and 7 are both Sunday."""

    def dow(*days):
        return lambda d: d.isoweekday() % 7 in days

    check(s, "0 12 * * 0", "UTC", [12], [0], day=dow(0))
    check(s, "0 12 * * 7", "UTC", [12], [0], day=dow(0))
    check(s, "0 12 * * SUN", "UTC", [12], [0], day=dow(0))
    check(s, "0 12 * * 1-5", "UTC", [12], [0], day=dow(1, 2, 3, 4, 5))
    check(s, "0 12 * * mon-fri", "UTC", [12], [0], day=dow(1, 2, 3, 4, 5))
    check(s, "0 12 * * tuesday,Sat", "UTC", [12], [0], day=dow(2, 6))
    check(s, "0 12 * * 5-7", "UTC", [12], [0], day=dow(5, 6, 0))
    check(s, "0 12 * * */2", "UTC", [12], [0], day=dow(0, 2, 4, 6))
    check(s, "@weekly", "UTC", [0], [0], day=dow(0))


@scenario
def days_and_months(s):
    """Day-of-month and month fields, month names, and rare dates years ahead."""
    check(s, "0 12 15 * *", "UTC", [12], [0], day=lambda d: d.day == 15)
    check(s, "0 12 31 * *", "UTC", [12], [0], day=lambda d: d.day == 31)
    check(s, "0 12 1,15 * *", "UTC", [12], [0], day=lambda d: d.day in (1, 15))
    check(s, "0 12 1 jan *", "UTC", [12], [0], day=lambda d: (d.month, d.day) == (1, 1))
    check(s, "0 12 10 MARCH-may *", "UTC", [12], [0], day=lambda d: d.day == 10 and d.month in (3, 4, 5))
    check(s, "0 12 1 */3 *", "UTC", [12], [0], day=lambda d: d.day == 1 and d.month in (1, 4, 7, 10))
    check(s, "0 12 29 2 *", "UTC", [12], [0], day=lambda d: (d.month, d.day) == (2, 29))
    check(s, "@monthly", "UTC", [0], [0], day=lambda d: d.day == 1)
    check(s, "@yearly", "UTC", [0], [0], day=lambda d: (d.month, d.day) == (1, 1))


@scenario
def either_day_field_may_match(s):
    """With both day fields restricted a day matches by either; a bare star does not restrict."""
    check(s, "0 12 13 * 5", "UTC", [12], [0], day=lambda d: d.day == 13 or d.isoweekday() == 5)
    check(s, "0 12 1-7 * mon", "UTC", [12], [0], day=lambda d: d.day <= 7 or d.isoweekday() == 1)
    check(s, "0 12 */2 * 1", "UTC", [12], [0], day=lambda d: d.day % 2 == 1 or d.isoweekday() == 1)
    check(s, "0 12 * * 3", "UTC", [12], [0], day=lambda d: d.isoweekday() == 3)
    check(s, "0 12 20 * *", "UTC", [12], [0], day=lambda d: d.day == 20)
    check(s, "0 12 1-31 * 3", "UTC", [12], [0])


@scenario
def seconds_of_the_minute(s):
    """Six fields: the first names seconds; the current minute counts while a listed second is still ahead."""
    check(s, "30 0 12 * * *", "UTC", [12], [0], [30])
    check(s, "*/20 * * * * *", "UTC", H, M, [0, 20, 40])
    check(s, "15,45 */10 * * * *", "UTC", H, range(0, 60, 10), [15, 45])
    check(s, "10-12 5 3 * * *", "UTC", [3], [5], [10, 11, 12])
    check(s, "0-59/25 * * * * *", "UTC", H, M, [0, 25, 50])
    check(s, "7 0 0 * * *", "Asia/Tokyo", [0], [0], [7])


@scenario
def intervals_count_from_now(s):
    """A first interval run comes repeatEvery after creation, whatever the clock shows."""
    for every in (1000, 60000, 86400000, 90061001):
        t = s.quiet.cmd(cmd="Ping")["data"]["time"]
        at = s.quiet.cmd(cmd="Cron", name=s.uid("c"), queue=s.q(), data={}, repeatEvery=every)["cron"]["nextRun"]
        s.quiet.cmd(cmd="CronDelete", name=s.uid("c"))
        s.note([every, 0 <= at - t - every < 1000])


@scenario
def update_recomputes_from_now(s):
    """An upsert with another timing starts over: the slot of the old timing is forgotten."""

    def add(**timing):
        return s.quiet.cmd(cmd="Cron", name=s.uid("c"), queue=s.q(), data={}, **timing)["cron"]["nextRun"]

    t = s.quiet.cmd(cmd="Ping")["data"]["time"]
    a, b = add(repeatEvery=3600000), add(repeatEvery=60000)
    c = add(schedule="0 0 1 1 *", timezone="UTC")
    d = add(schedule="0 0 1 1 *", timezone="America/New_York")
    s.note([0 <= a - t - 3600000 < 2000, 0 <= b - t - 60000 < 2000, d - c])
    s.note(s.quiet.cmd(cmd="CronGet", name=s.uid("c"))["cron"]["nextRun"] == d)
    s.quiet.cmd(cmd="CronDelete", name=s.uid("c"))


def next_shift(tz, forward):
    """The coming day (from tomorrow) on which the zone's clock jumps forward, or falls back; its date."""
    zone = zoneinfo.ZoneInfo(tz)
    date = datetime.datetime.now(zone).date() + datetime.timedelta(days=1)
    for _ in range(500):
        a = datetime.datetime(date.year, date.month, date.day, 0, 0, tzinfo=zone).utcoffset()
        b = datetime.datetime(date.year, date.month, date.day, 23, 59, tzinfo=zone).utcoffset()
        if (b > a) if forward else (b < a):
            return date
        date += datetime.timedelta(days=1)
    raise LookupError(tz)


def on_shift_day(s, tz, forward, minute, hour):
    """Schedule a time on the day of the coming clock change; note the wall time and offset of the run in minutes."""
    date = next_shift(tz, forward)
    schedule = f"{minute} {hour} {date.day} {date.month} *"
    got = s.quiet.cmd(cmd="Cron", name=s.uid("c"), queue=s.q(), data={}, schedule=schedule, timezone=tz)
    s.quiet.cmd(cmd="CronDelete", name=s.uid("c"))
    at = datetime.datetime.fromtimestamp(got["cron"]["nextRun"] / 1000, zoneinfo.ZoneInfo(tz))
    s.note(
        [
            tz,
            "forward" if forward else "back",
            f"{minute} {hour}",
            at.date() == date,
            at.strftime("%H:%M"),
            int(at.utcoffset().total_seconds() // 60),
        ]
    )


@scenario
def clock_jumps_forward(s):
    """A time that the spring change skips is run later by the length of the gap; other times are not touched."""
    for tz in ("Europe/Rome", "America/New_York"):
        on_shift_day(s, tz, True, 30, 2)
        on_shift_day(s, tz, True, 0, 2)
        on_shift_day(s, tz, True, 30, 1)
        on_shift_day(s, tz, True, 30, 3)
        on_shift_day(s, tz, True, 0, 12)


@scenario
def clock_falls_back(s):
    """A time that the autumn change repeats is run at its first pass."""
    for tz, hour in (("Europe/Rome", 2), ("America/New_York", 1)):
        on_shift_day(s, tz, False, 30, hour)
        on_shift_day(s, tz, False, 0, hour)
        on_shift_day(s, tz, False, 30, hour + 1)
        on_shift_day(s, tz, False, 0, 12)
