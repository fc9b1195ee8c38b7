package console

import (
	"fmt"
	"strconv"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/scheduler/timetable"
)

// settingsPage is what a person can choose: the zone of times, kept in the
// browser, and how mail comes, kept with the member.
type settingsPage struct {
	Zone  string
	Zones []string
	Wrong string
	Mail  []option
}

func (c *Console) settings(v *visit) error {
	name := ""
	if v.zone != nil {
		name = v.zone.String()
	}
	return v.showSettings(name, "", 0)
}

func (v *visit) showSettings(zone, wrong string, status int) error {
	m, err := v.actor()
	if err != nil {
		return err
	}
	s, err := v.c.Authority.NoticeSettings(v.r.Context(), m)
	if err != nil {
		return err
	}
	p := settingsPage{Zone: zone, Zones: someZones, Wrong: wrong, Mail: []option{{"", "each thing at once", s.Daily == nil}}}
	for hour := range 24 {
		p.Mail = append(p.Mail, option{strconv.Itoa(hour), fmt.Sprintf("one mail a day, at %02d:00 UTC", hour), s.Daily != nil && *s.Daily == hour})
	}
	return v.show(sheet{Name: "settings", Title: "Settings", Here: "settings", Status: status, Main: p}, nil)
}

// setZone keeps the chosen zone in this browser; an empty one forgets it.
func (c *Console) setZone(v *visit) error {
	f, err := v.form("zone")
	if err != nil {
		return err
	}
	name, life := f.Get("zone"), 400*24*time.Hour
	if name == "" {
		life = -time.Second
	} else if _, err := timetable.LoadZone(name); err != nil {
		return v.showSettings(short(name, 64), "This is not a zone that we know. Write one such as Europe/Berlin.", api.InvalidDocument.Status())
	}
	v.cookie(cookieZone, name, life)
	v.tell("saved")
	return v.see("/settings")
}

// setMail keeps how the member is told.
func (c *Console) setMail(v *visit) error {
	f, err := v.form("daily")
	if err != nil {
		return err
	}
	var s api.NoticeSettings
	if text := f.Get("daily"); text != "" {
		hour, err := strconv.Atoi(text)
		if err != nil {
			return api.Refuse(api.InvalidRequest)
		}
		s.Daily = &hour
	}
	m, err := v.actor()
	if err != nil {
		return err
	}
	if err := c.Authority.Notify(v.r.Context(), m, s); err != nil {
		return err
	}
	v.tell("saved")
	return v.see("/settings")
}
