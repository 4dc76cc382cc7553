// Limits of a plan: those in force, those of the plan itself, and fields that change them.

import { el, setText } from './dom.js';
import { table } from './vm.js';

/** In place of a rate: as fast as it goes. */
const NO_RATE = 'none';

const rates = (limits) => (limits.rate_limit.length > 0 ? limits.rate_limit : [NO_RATE]);

/** A rate may have a window before it, which has no comma. */
function readRates(text) {
  const found = text.split(/[,\n]/).map((part) => part.trim()).filter(Boolean);
  if (found.length === 0) throw new Error(`rate_limit: write a rate such as 50MiB, or ${NO_RATE} for no limit`);
  return found;
}

/** The daemon says which numbers it takes. */
const readCount = (name) => (text) => {
  if (!/^\d{1,9}$/.test(text.trim())) throw new Error(`${name}: '${text.trim()}' is not a whole number`);
  return Number(text);
};

const count = (name, meaning) => ({
  name, label: `${name}: ${meaning}`, of: (limits) => limits[name], read: readCount(name),
  field: (attributes, value) => el('input', { ...attributes, type: 'text', inputmode: 'numeric', value }),
});

const LIMITS = [
  { name: 'rate_limit', label: `rate_limit: such as 50MiB, 08:00-18:00 Europe/Berlin=200m or ${NO_RATE}; several with commas or lines between them`, of: rates, read: readRates,
    field: (attributes, value) => el('textarea', { ...attributes, class: 'short', rows: '2' }, value.join('\n')) },
  count('disks', 'copied at once in all'),
  count('vms_per_host', 'VMs of one host at once'),
];

/** The fields, what they change, and where a reason is shown that names one of them. */
export function limitsForm({ now, plan }) {
  const fields = LIMITS.map((limit) => {
    const [id, whyId] = [`limit-${limit.name}`, `limit-${limit.name}-why`];
    const input = limit.field({ id, autocomplete: 'off', spellcheck: 'false', 'aria-describedby': whyId }, limit.of(now));
    return { limit, input, why: el('p', { id: whyId, class: 'problem', role: 'alert' }) };
  });
  const clear = () => fields.forEach(({ input, why }) => { input.removeAttribute('aria-invalid'); setText(why, ''); });
  const text = (value) => [value].flat().join(', ');
  return {
    content: [
      table('Limits', ['Limit', 'In force', 'Plan'], LIMITS.map(({ name, of }) => [name, text(of(now)), text(of(plan))])),
      el('p', {}, 'What is under way goes on: with fewer disks or VMs, no new ones begin until those above the limit have ended. The daemon\'s own limits hold, too.'),
      ...fields.map(({ limit, input, why }) => el('div', { class: 'field' }, el('label', { for: input.id }, limit.label), input, why)),
    ],
    /** Limits that are not as those in force, as the order takes them. */
    changed: () => {
      clear();
      const read = fields.map(({ limit, input }) => [limit, limit.read(input.value)]);
      const changed = read.filter(([limit, value]) => String(value) !== String(limit.of(now)));
      if (changed.length === 0) throw new Error('no limit is changed');
      return Object.fromEntries(changed.map(([limit, value]) => [limit.name, value]));
    },
    /** Shows an error at the field that it names; whether it names one. */
    refuse: (error) => {
      const field = fields.find(({ limit }) => error.message.startsWith(`${limit.name}: `));
      if (!field) return false;
      field.input.setAttribute('aria-invalid', 'true');
      setText(field.why, [error.message, error.problem?.advice].filter(Boolean).join('\n'));
      field.input.focus();
      return true;
    },
    isOpen: () => fields[0].input.closest('dialog')?.open ?? false,
  };
}
